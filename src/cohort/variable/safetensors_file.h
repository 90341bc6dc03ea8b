// SPDX-License-Identifier: Apache-2.0
// A safetensors file that is read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "cohort/core/atomic_file.h"
#include "cohort/core/export.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/variable/safetensors.h"

namespace cohort::variable {

// Thread-safe.
class COHORT_API SafetensorsFile {
 public:
  // Throws not_found if there is no such file; data_loss if it is not a safetensors file.
  explicit SafetensorsFile(std::string path);

  const SavedTensors& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  // Throws not_found, with the list of keys, for another key.
  const SavedTensor& find(const std::string& key) const;
  // Reads bytes of a tensor, from its byte `offset` on. Throws data_loss if the file has become
  // shorter.
  void read(const SavedTensor& tensor, std::uint64_t offset, std::span<std::byte> buffer) const;

 private:
  const std::string path_;
  const FileDescriptor file_;
  std::uint64_t data_ = 0;  // where the tensors' bytes begin
  SavedTensors tensors_;
};

// Writes all bytes of a new file; `value_of` gives each tensor of the header in its order.
COHORT_API void write_safetensors(AtomicFile& file, const NewHeader& header,
                                  const std::function<at::Tensor(const std::string&)>& value_of);

// Memory for a tensor's bytes as a file has them. Throws unimplemented for a dtype that LibTorch
// does not have. `key` and `path` are for the message.
COHORT_API at::Tensor memory_for(const SavedTensor& saved, const std::string& key,
                                 const std::string& path);
// The tensor of these bytes: any byte may be in a file, but not in a bool of C++.
COHORT_API at::Tensor tensor_of_memory(const SavedTensor& saved, const at::Tensor& memory);
COHORT_API std::span<const std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace cohort::variable
