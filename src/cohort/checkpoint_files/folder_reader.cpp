// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/folder_reader.h"

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"

namespace cohort::checkpoint {
namespace {

std::uint64_t bytes_of_rows(TensorSpec spec, std::int64_t rows) {
  if (!spec.sizes->empty()) spec.sizes->front() = rows;
  return static_cast<std::uint64_t>(spec.byte_count());
}

const std::string& file_of(const TensorEntry& entry, const PartEntry& part) {
  return part.file.empty() ? entry.file : part.file;
}

}  // namespace

std::string manifest_text(const std::string& folder) {
  std::error_code error;
  COHORT_CHECK(std::filesystem::exists(folder, error), ErrorCode::not_found,
               "[checkpoint.read] expected the folder of a checkpoint, got '", folder,
               "', which does not exist");
  const std::string path = folder + "/manifest.json";
  std::ifstream file(path, std::ios::binary);
  COHORT_CHECK(file.is_open(), ErrorCode::data_loss,
               "[checkpoint.read] expected the folder of a checkpoint, got '", folder,
               "' without a manifest.json that can be read; it is something else, or damaged");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

FolderReader::FolderReader(std::string folder)
    : folder_(std::move(folder)),
      manifest_(parse_manifest(manifest_text(folder_), folder_ + "/manifest.json")) {}

const FolderReader::Layout& FolderReader::layout_of(const std::string& tensor,
                                                    const TensorEntry& entry) {
  const auto known = layouts_.find(tensor);
  if (known != layouts_.end()) return known->second;
  Layout& layout = layouts_[tensor];
  layout.rows[entry.file] = 0;
  for (const PartEntry& part : entry.parts) {
    std::int64_t& rows = layout.rows[file_of(entry, part)];
    layout.first.push_back(rows);
    rows += part.rows;
  }
  return layout;
}

FolderReader::Found FolderReader::find(const std::string& tensor, const TensorEntry& entry,
                                       const std::string& file) {
  std::unique_ptr<variable::SafetensorsFile>& opened = files_[file];
  if (opened == nullptr) opened = std::make_unique<variable::SafetensorsFile>(folder_ + "/" + file);
  const auto saved = opened->tensors().find(tensor);
  TensorSpec spec = entry.spec;
  if (!spec.sizes->empty()) spec.sizes->front() = layout_of(tensor, entry).rows.at(file);
  const bool fits = saved != opened->tensors().end() && saved->second.dtype == spec.dtype &&
                    saved->second.sizes == *spec.sizes;
  COHORT_CHECK(fits, ErrorCode::data_loss, "[checkpoint.read] expected ", spec.to_string(), " '",
               tensor, "' in file '", opened->path(),
               "', as the manifest says, got something else; the file is damaged, or of another "
               "checkpoint");
  return {*opened, saved->second};
}

void FolderReader::read_rows(const std::string& tensor, const TensorEntry& entry, std::size_t part,
                             std::byte* to) {
  const PartEntry& rows = entry.parts.at(part);
  const Found found = find(tensor, entry, file_of(entry, rows));
  const std::span<std::byte> bytes(to,
                                   static_cast<std::size_t>(bytes_of_rows(entry.spec, rows.rows)));
  const std::int64_t first_row = layout_of(tensor, entry).first.at(part);
  found.file.read(found.saved,
                  bytes_of_rows(entry.spec, first_row) * (entry.spec.sizes->empty() ? 0U : 1U),
                  bytes);
  COHORT_CHECK(crc32c(bytes) == rows.checksum, ErrorCode::data_loss,
               "[checkpoint.read] expected the bytes of '", tensor, "' in file '",
               found.file.path(), "' with the checksum ", rows.checksum,
               ", as they were saved, got ", crc32c(bytes), "; the file is damaged");
}

variable::SavedTensor FolderReader::rows_like(const std::string& tensor, const TensorEntry& entry,
                                              const TensorSpec& rows) {
  variable::SavedTensor saved = find(tensor, entry, entry.file).saved;
  saved.sizes = *rows.sizes;
  return saved;
}

at::Tensor FolderReader::read(const std::string& tensor) {
  const TensorEntry& entry = manifest_.tensors.at(tensor);
  // Before memory for all is made: the files have what the manifest says.
  for (const auto& [file, rows] : layout_of(tensor, entry).rows) find(tensor, entry, file);
  const variable::SavedTensor whole = rows_like(tensor, entry, entry.spec);
  const at::Tensor memory = variable::memory_for(whole, tensor, folder_ + "/" + entry.file);
  auto* to = static_cast<std::byte*>(memory.data_ptr());
  for (std::size_t part = 0; part < entry.parts.size(); ++part) {
    read_rows(tensor, entry, part, to);
    to += bytes_of_rows(entry.spec, entry.parts[part].rows);
  }
  return variable::tensor_of_memory(whole, memory);
}

at::Tensor FolderReader::read_part(const std::string& tensor, std::size_t part) {
  const TensorEntry& entry = manifest_.tensors.at(tensor);
  TensorSpec spec = entry.spec;
  if (!spec.sizes->empty()) spec.sizes->front() = entry.parts.at(part).rows;
  const variable::SavedTensor rows = rows_like(tensor, entry, spec);
  const at::Tensor memory = variable::memory_for(rows, tensor, folder_ + "/" + entry.file);
  read_rows(tensor, entry, part, static_cast<std::byte*>(memory.data_ptr()));
  return variable::tensor_of_memory(rows, memory);
}

void FolderReader::verify() {
  for (const auto& [name, entry] : manifest_.tensors) {
    find(name, entry, entry.file);
    for (std::size_t part = 0; part < entry.parts.size(); ++part) read_part(name, part);
  }
}

}  // namespace cohort::checkpoint
