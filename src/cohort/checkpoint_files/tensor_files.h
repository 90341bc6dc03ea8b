// SPDX-License-Identifier: Apache-2.0
// The safetensors files that one process writes into the folder of a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cohort/checkpoint_files/manifest.h"
#include "cohort/checkpoint_files/tensor_file.h"

namespace cohort::checkpoint {

// A file for each dtype, and one for each tensor that grows. Thread-compatible.
class TensorFiles {
 public:
  // `prefix`: of the names of the files. `header_room`: about how many bytes the names and shapes
  // of all tensors have.
  TensorFiles(std::string folder, std::string prefix, std::uint64_t header_room)
      : folder_(std::move(folder)), prefix_(std::move(prefix)), header_room_(header_room) {}

  // Writes rows of the tensor `name`, which has this spec here. All rows must be written once.
  void write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
             const at::Tensor& rows);
  // Appends rows to a tensor that has as many rows as are appended; `rows` may be empty.
  void append(const std::string& name, const at::Tensor& rows);
  // Waits until the disk has the content of all files, and adds their tensors. Call it once.
  void finish(std::map<std::string, TensorEntry>& tensors);
  // Closes them as they are.
  void drop() { files_.clear(); }

 private:
  struct Place {
    TensorFile* file;
    std::size_t tensor;
  };
  const std::string folder_, prefix_;
  const std::uint64_t header_room_;
  std::map<std::string, std::unique_ptr<TensorFile>> files_;  // by name
  std::map<std::string, Place> places_;                       // of tensors, by name
};

}  // namespace cohort::checkpoint
