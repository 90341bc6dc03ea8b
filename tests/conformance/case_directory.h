// SPDX-License-Identifier: Apache-2.0
// The fresh directory of a case with the files it asks for (FORMAT.md, 3).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tests/conformance/json.h"

namespace cohort::conformance {

// The bytes of a file of records, written here and not by the library: a writer and a reader with
// one mistake would agree.
std::string record_file(const Json& records);

// Removed with everything in it at the end. Thread-compatible.
class CaseDirectory {
 public:
  // `files`: the case's entries; null for none.
  explicit CaseDirectory(const Json& files);
  ~CaseDirectory();
  CaseDirectory(const CaseDirectory&) = delete;
  CaseDirectory& operator=(const CaseDirectory&) = delete;

  std::string path_of(std::string_view name) const;
  // The value with the directory's path taken off every text that begins with it.
  Json without_path(const Json& value) const;

 private:
  void create(const Json& entry);
  void create_set(const Json& set);
  void write(const std::string& name, const Json& entry, const std::string& content) const;

  std::filesystem::path path_;
};

}  // namespace cohort::conformance
