// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/tensor_files.h"

#include <ATen/core/TensorBody.h>

#include <utility>

namespace cohort::checkpoint {
namespace {

// A file with one tensor needs so much, as its name may be long.
constexpr std::uint64_t kOneHeaderRoom = 4096;

}  // namespace

void TensorFiles::write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                        const at::Tensor& rows) {
  auto place = places_.find(name);
  if (place == places_.end()) {
    const std::string file = prefix_ + dtype_name(spec.dtype) + ".safetensors";
    std::unique_ptr<TensorFile>& own = files_[file];
    if (own == nullptr) own = std::make_unique<TensorFile>(folder_ + "/" + file, header_room_);
    place = places_.emplace(name, Place{own.get(), own->add(name, spec)}).first;
  }
  place->second.file->write(place->second.tensor, first_row, rows);
}

void TensorFiles::append(const std::string& name, const at::Tensor& rows) {
  auto place = places_.find(name);
  if (place == places_.end()) {
    const std::string file = prefix_ + "rows-" + std::to_string(files_.size()) + ".safetensors";
    auto& own = files_[file];
    own = std::make_unique<TensorFile>(folder_ + "/" + file, kOneHeaderRoom);
    place =
        places_.emplace(name, Place{own.get(), own->add_growing(name, TensorSpec::of(rows))}).first;
  }
  if (rows.size(0) > 0) place->second.file->append(rows);
}

void TensorFiles::finish(std::map<std::string, TensorEntry>& tensors) {
  for (auto& [name, file] : files_) {
    file->finish();
    for (TensorFile::Written& written : file->take_written())
      tensors.emplace(std::move(written.name),
                      TensorEntry{std::move(written.spec), name, std::move(written.parts)});
  }
}

}  // namespace cohort::checkpoint
