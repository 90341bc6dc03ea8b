// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/checkpoint_files/manifest.h"
#include "cohort/variable/safetensors_file.h"

namespace cohort::checkpoint {

// The text of a checkpoint's manifest. Throws not_found if there is no such folder; data_loss if
// the folder has none.
std::string manifest_text(const std::string& folder);

// A checkpoint that is read. Every byte is compared with its checksum before it is used.
// Thread-compatible.
class FolderReader {
 public:
  explicit FolderReader(std::string folder);
  FolderReader(std::string folder, Manifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)) {}
  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }

  // A tensor of the manifest, or one part of it. Throws data_loss, naming the file, if it is not
  // what was written.
  at::Tensor read(const std::string& tensor);
  at::Tensor read_part(const std::string& tensor, std::size_t part);
  // Reads all, to check it.
  void verify();

 private:
  // The file with the tensor, and where it is there.
  struct Found {
    const variable::SafetensorsFile& file;
    const variable::SavedTensor& saved;
  };
  // Where the rows of a tensor are.
  struct Layout {
    std::map<std::string, std::int64_t> rows = {};  // by file: how many it has
    std::vector<std::int64_t> first = {};           // by part: its first row in its file
  };
  const Layout& layout_of(const std::string& tensor, const TensorEntry& entry);
  // `file`: the tensor's, or that of some of its parts.
  Found find(const std::string& tensor, const TensorEntry& entry, const std::string& file);
  // Some rows of the tensor, as a file would have them.
  variable::SavedTensor rows_like(const std::string& tensor, const TensorEntry& entry,
                                  const TensorSpec& rows);
  void read_rows(const std::string& tensor, const TensorEntry& entry, std::size_t part,
                 std::byte* to);

  const std::string folder_;
  const Manifest manifest_;
  std::map<std::string, std::unique_ptr<variable::SafetensorsFile>> files_;
  std::map<std::string, Layout> layouts_;  // of tensors that were read
};

}  // namespace cohort::checkpoint
