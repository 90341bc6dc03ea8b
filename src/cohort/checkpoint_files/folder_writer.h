// SPDX-License-Identifier: Apache-2.0
// A checkpoint that appears whole or not at all: a folder with safetensors files and a manifest.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/checkpoint_files/manifest.h"
#include "cohort/checkpoint_files/tensor_files.h"

namespace cohort::checkpoint {

// A folder of this name beside the checkpoint's is one that was not finished: its writer has ended,
// or writes still.
inline constexpr std::string_view kPartialSuffix = ".partial-";

// Writes under another name in the same folder, which it removes if it is not committed.
// Thread-compatible.
class FolderWriter {
 public:
  // Makes the folder above it if that does not exist. `header_room`: about how many bytes the names
  // and shapes of all tensors have. Throws the errors of the file system, naming the file.
  FolderWriter(std::string path, std::uint64_t header_room);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // Writes rows of the tensor `name`, which has this spec. All rows must be written once.
  void write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
             const at::Tensor& rows);
  void write(const std::string& name, const at::Tensor& tensor) {
    write(name, TensorSpec::of(tensor), 0, tensor);
  }
  // Appends rows to a tensor that has as many rows as are appended; `rows` may be empty.
  void append(const std::string& name, const at::Tensor& rows);
  // The folder as it is called until commit(), where others may write their shares.
  const std::string& partial_path() const { return partial_path_; }
  // Adds what one of them has written (ShareWriter::finish()), and returns its variables. Throws
  // data_loss, naming the writer, if it does not fit the shares of others, and failed_precondition
  // if a file of it is not here.
  std::vector<VariableEntry> add_share(const std::string& text, const std::string& writer);
  // Waits until the disk has all, adds the tensors to the manifest, writes it, and gives the folder
  // its name; one that has the name is replaced at that moment. If `check`, which is called before,
  // throws, nothing is replaced. Call it once.
  void commit(Manifest manifest, const std::function<void()>& check = {});

 private:
  const std::string path_;
  const std::string partial_path_;
  TensorFiles files_;
  Manifest shares_;  // the tensors of other writers
  bool is_committed_ = false;
};

}  // namespace cohort::checkpoint
