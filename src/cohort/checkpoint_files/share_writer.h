// SPDX-License-Identifier: Apache-2.0
// One of several writers of a checkpoint: it writes its share into the folder that another one has
// made, and tells that one what it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/checkpoint_files/manifest.h"
#include "cohort/checkpoint_files/tensor_files.h"
#include "cohort/checkpoint_files/tensor_sink.h"

namespace cohort::checkpoint {

// A file in a folder by which others show that they see the same folder.
struct FolderProof {
  std::string folder = {};
  std::string name = {};  // of the file
  std::string text = {};  // its content
};
// Writes such a file with a random name and text. Throws the errors of the file system.
FolderProof make_proof(const std::string& folder);
void remove_proof(const FolderProof& proof);
// Throws failed_precondition, naming `writer` and the folder, if this process does not see it.
void check_proof(const FolderProof& proof, const std::string& writer);

// Thread-compatible.
class ShareWriter final : public TensorSink {
 public:
  // `prefix`: of the names of its files, which no other writer has: "ps-0-".
  ShareWriter(const FolderProof& proof, const std::string& writer, const std::string& prefix,
              std::uint64_t header_room);

  // Before the rows of a variable: this writer has so many of them in all.
  void set_rows(std::int64_t rows) { rows_ = rows; }
  using TensorSink::write;
  void write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
             at::Tensor rows) override;
  void append(const std::string& name, at::Tensor rows) override { files_.append(name, rows); }
  // Waits until the disk has all. Returns the tensors with their specs as a whole, and these
  // variables, as encode() makes a text of them. Call it once.
  std::string finish(std::vector<VariableEntry> variables);
  std::uint64_t bytes() const { return bytes_; }  // that were written

 private:
  // Rows that this writer has of a tensor, one after the other.
  struct Rows {
    TensorSpec whole;
    std::int64_t count = 0;
    std::map<std::int64_t, std::int64_t> first;  // by the row in the file: the row of the whole
  };
  TensorFiles files_;
  const std::string folder_;
  std::map<std::string, Rows> tensors_;  // by name: those that do not grow
  std::int64_t rows_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace cohort::checkpoint
