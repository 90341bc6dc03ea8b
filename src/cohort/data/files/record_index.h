// SPDX-License-Identifier: Apache-2.0
// The index of a record file: the offsets of its records (docs/formats/record.md).
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

// Reads the headers of all records; data_loss if one is damaged.
RecordIndex scan_record_index(const std::string& path);
std::string index_path(const std::string& path);
void save_record_index(const RecordIndex& index, const std::string& path);
// nullopt if there is no index, or it is for a file of another size; data_loss if it is damaged.
std::optional<RecordIndex> load_record_index(const std::string& path, std::uint64_t file_bytes);

}  // namespace cohort::data
