// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/share_writer.h"

#include <ATen/core/TensorBody.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "cohort/core/atomic_file.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"

namespace cohort::checkpoint {

FolderProof make_proof(const std::string& folder) {
  // The other writers may be in another working directory.
  FolderProof proof{.folder = std::filesystem::absolute(folder).string(),
                    .name = fmt::format("seen-{:016x}", draw_number()),
                    .text = fmt::format("{:016x}", draw_number())};
  write_atomically(folder + "/" + proof.name, proof.text, "checkpoint.write");
  return proof;
}

void remove_proof(const FolderProof& proof) {
  std::error_code ignored;  // it does no harm
  std::filesystem::remove(proof.folder + "/" + proof.name, ignored);
}

void check_proof(const FolderProof& proof, const std::string& writer) {
  std::ifstream file(proof.folder + "/" + proof.name, std::ios::binary);
  std::ostringstream text;
  if (file.is_open()) text << file.rdbuf();
  COHORT_CHECK(text.str() == proof.text, ErrorCode::failed_precondition,
               "[checkpoint.write] expected ", writer,
               " to see the folder of the checkpoint with the file '", proof.name, "', got ",
               file.is_open() ? "another file" : "none", " in '", proof.folder,
               "': with CheckpointWriters::each all writers need one file system with the folder "
               "at the same path; mount it there, or save with CheckpointWriters::first");
}

ShareWriter::ShareWriter(const FolderProof& proof, const std::string& writer,
                         const std::string& prefix, std::uint64_t header_room)
    : files_(proof.folder, prefix, header_room), folder_(proof.folder) {
  check_proof(proof, writer);
}

void ShareWriter::write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                        at::Tensor rows) {
  Rows& known = tensors_[name];
  if (known.count == 0) known.whole = spec;
  TensorSpec here = spec;
  if (!here.sizes->empty()) here.sizes->front() = rows_;
  known.first.emplace(known.count, first_row);
  files_.write(name, here, known.count, rows);
  known.count += spec.sizes->empty() ? 1 : rows.size(0);
  bytes_ += rows.nbytes();
}

std::string ShareWriter::finish(std::vector<VariableEntry> variables) {
  Manifest share{.variables = std::move(variables)};
  files_.finish(share.tensors);
  sync_folder(folder_);  // the disk has the names of the files
  for (auto& [name, tensor] : share.tensors) {
    const auto rows = tensors_.find(name);
    if (rows == tensors_.end()) continue;
    tensor.spec = rows->second.whole;
    for (PartEntry& part : tensor.parts) {
      const auto [in_file, in_whole] = *std::prev(rows->second.first.upper_bound(part.first_row));
      part.first_row += in_whole - in_file;
    }
  }
  return encode(share);
}

}  // namespace cohort::checkpoint
