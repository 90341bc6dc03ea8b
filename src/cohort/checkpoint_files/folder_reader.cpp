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

FolderReader::Found FolderReader::find(const std::string& tensor, const TensorEntry& entry) {
  std::unique_ptr<variable::SafetensorsFile>& file = files_[entry.file];
  if (file == nullptr)
    file = std::make_unique<variable::SafetensorsFile>(folder_ + "/" + entry.file);
  const auto saved = file->tensors().find(tensor);
  const bool fits = saved != file->tensors().end() && saved->second.dtype == entry.spec.dtype &&
                    saved->second.sizes == *entry.spec.sizes;
  COHORT_CHECK(fits, ErrorCode::data_loss, "[checkpoint.read] expected ", entry.spec.to_string(),
               " '", tensor, "' in file '", file->path(),
               "', as the manifest says, got something else; the file is damaged, or of another "
               "checkpoint");
  return {*file, saved->second};
}

void FolderReader::read_rows(const std::string& tensor, const TensorEntry& entry,
                             const PartEntry& part, std::byte* to) {
  const Found found = find(tensor, entry);
  const std::span<std::byte> bytes(to,
                                   static_cast<std::size_t>(bytes_of_rows(entry.spec, part.rows)));
  found.file.read(found.saved,
                  bytes_of_rows(entry.spec, part.first_row) * (entry.spec.sizes->empty() ? 0U : 1U),
                  bytes);
  COHORT_CHECK(crc32c(bytes) == part.checksum, ErrorCode::data_loss,
               "[checkpoint.read] expected the bytes of '", tensor, "' in file '",
               found.file.path(), "' with the checksum ", part.checksum,
               ", as they were saved, got ", crc32c(bytes), "; the file is damaged");
}

at::Tensor FolderReader::read(const std::string& tensor) {
  const TensorEntry& entry = manifest_.tensors.at(tensor);
  const Found found = find(tensor, entry);
  const at::Tensor memory = variable::memory_for(found.saved, tensor, found.file.path());
  auto* to = static_cast<std::byte*>(memory.data_ptr());
  for (const PartEntry& part : entry.parts) {
    read_rows(tensor, entry, part, to);
    to += bytes_of_rows(entry.spec, part.rows);
  }
  return variable::tensor_of_memory(found.saved, memory);
}

at::Tensor FolderReader::read_part(const std::string& tensor, std::size_t part) {
  const TensorEntry& entry = manifest_.tensors.at(tensor);
  const Found found = find(tensor, entry);
  variable::SavedTensor rows = found.saved;
  if (!rows.sizes.empty()) rows.sizes.front() = entry.parts.at(part).rows;
  const at::Tensor memory = variable::memory_for(rows, tensor, found.file.path());
  read_rows(tensor, entry, entry.parts.at(part), static_cast<std::byte*>(memory.data_ptr()));
  return variable::tensor_of_memory(rows, memory);
}

void FolderReader::verify() {
  for (const auto& [name, entry] : manifest_.tensors) {
    find(name, entry);
    for (std::size_t part = 0; part < entry.parts.size(); ++part) read_part(name, part);
  }
}

}  // namespace cohort::checkpoint
