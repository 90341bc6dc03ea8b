// SPDX-License-Identifier: Apache-2.0
// The temporary directory of a case, with its files (FORMAT.md, 3).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tests/conformance/json.h"

namespace cohort::conformance {

// The bytes of a record file. Written without the library, since a writer and a reader with the
// same mistake would agree.
std::string record_file(const Json& records);

// The destructor removes the directory and its files. Thread-compatible.
class CaseDirectory {
 public:
  // `files`: the case's entries; null for none.
  explicit CaseDirectory(const Json& files);
  ~CaseDirectory();
  CaseDirectory(const CaseDirectory&) = delete;
  CaseDirectory& operator=(const CaseDirectory&) = delete;

  std::string path_of(std::string_view name) const;
  // The value without the directory's path at the beginning of texts.
  Json without_path(const Json& value) const;

 private:
  void create(const Json& entry);
  void create_set(const Json& set);
  void write(const std::string& name, const Json& entry, const std::string& content) const;

  std::filesystem::path path_;
};

}  // namespace cohort::conformance
