// SPDX-License-Identifier: Apache-2.0
// Opening the files of a graph, which may have come from a peer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cohort/data/dataset.h"

namespace cohort::data {

// The canonical path, if it lies under one of options.data_dirs (also canonical); permission_denied
// naming path and remedy otherwise, before it is known whether the file exists. `op` is for
// messages. invalid_argument for a path with a zero byte: the system would open another file.
std::string allowed_path(const std::string& path, const RunOptions& options, std::string_view op);

// A whole file mapped privately: it must not be shortened while this lives. Immutable.
class MappedFile {
 public:
  // not_found where there is no such file, invalid_argument where it is not a regular one.
  static std::shared_ptr<const MappedFile> open(const std::string& path, std::string_view op);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace cohort::data
