// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a checkpoint go: to its folder, at once or by a thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cohort/checkpoint/background_write.h"
#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/checkpoint_files/tensor_sink.h"

namespace cohort::checkpoint {

class SavedFolder final : public TensorSink {
 public:
  // Writes at once.
  explicit SavedFolder(std::shared_ptr<FolderWriter> folder) : folder_(std::move(folder)) {}
  // Leaves the writing to the thread. A tensor whose memory somebody else has is copied; so the
  // caller may change all tensors when a call returns. `bytes_max` as the thread has it.
  SavedFolder(std::shared_ptr<FolderWriter> folder, BackgroundWrite& thread,
              std::uint64_t bytes_max)
      : folder_(std::move(folder)), thread_(&thread), bytes_max_(bytes_max) {}

  using TensorSink::write;
  void write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
             at::Tensor rows) override;
  void append(const std::string& name, at::Tensor rows) override;

 private:
  void add(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
           at::Tensor rows);

  // Shared with the tasks of the thread, of which the last one ends the writing.
  std::shared_ptr<FolderWriter> folder_;
  BackgroundWrite* thread_ = nullptr;
  std::uint64_t bytes_max_ = 0;
};

}  // namespace cohort::checkpoint
