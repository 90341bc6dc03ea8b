// SPDX-License-Identifier: Apache-2.0
// Where the records of a file begin (docs/formats/record.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort::data {

struct RecordIndex {
  std::uint64_t file_bytes = 0;        // of the file it was made for
  std::vector<std::uint64_t> offsets;  // ascending
};

// By walking over the headers; data_loss where they do not fit together.
RecordIndex scan_record_index(const std::string& path);
std::string index_path(const std::string& path);
void save_record_index(const RecordIndex& index, const std::string& path);
// nullopt where there is no index for the file as it is; data_loss for a damaged one.
std::optional<RecordIndex> load_record_index(const std::string& path, std::uint64_t file_bytes);

}  // namespace cohort::data
