// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/worker_shares.h"

#include <ATen/core/TensorBody.h>

#include <map>
#include <vector>

#include "cohort/checkpoint/contents.h"
#include "cohort/checkpoint_files/saved_records.h"
#include "cohort/checkpoint_files/share_writer.h"
#include "cohort/core/bytes.h"

namespace cohort::checkpoint {
namespace {

using SlotRows = internal::StrategyVariables::SlotRows;

Bytes bytes_of_proof(const FolderProof& proof) {
  ByteWriter out;
  for (const std::string& text : {proof.folder, proof.name, proof.text}) out.text(text);
  return out.take();
}

FolderProof proof_of_bytes(const Bytes& bytes) {
  ByteReader in(bytes, "the folder of a checkpoint");
  FolderProof proof;
  proof.folder = in.text();
  proof.name = in.text();
  proof.text = in.text();
  return proof;
}

std::string worker_name(std::size_t index) { return "worker:" + std::to_string(index); }

std::string tensor_of_slot(const SlotRows& slot) {
  return name_of_slot(slot.variable, slot.optimizer, slot.rule, slot.number);
}

std::string write_pieces(const FolderProof& proof, std::size_t worker, std::uint64_t header_room,
                         std::span<const SlotRows> pieces) {
  const std::string prefix = "worker-" + std::to_string(worker) + "-";
  ShareWriter share(proof, worker_name(worker), prefix, header_room);
  std::map<std::string, std::int64_t> rows;  // by name
  for (const SlotRows& each : pieces)
    if (each.rows.defined())
      rows[tensor_of_slot(each)] += each.rows.dim() == 0 ? 1 : each.rows.size(0);
  for (const SlotRows& each : pieces) {
    if (!each.rows.defined()) continue;
    const std::string name = tensor_of_slot(each);
    share.set_rows(rows.at(name));
    share.write(name, each.spec, each.first_row, each.rows);
  }
  return share.finish({});
}

}  // namespace

std::shared_ptr<FolderWriter> write_worker_shares(const internal::StrategyVariables& parts,
                                                  const std::string& path,
                                                  std::uint64_t header_room,
                                                  std::span<const SlotRows> pieces) {
  std::shared_ptr<FolderWriter> files;
  const Bytes told = parts
                         .exchange("checkpoint",
                                   [&] {
                                     if (parts.process() != 0) return Bytes();
                                     files = std::make_shared<FolderWriter>(path, header_room);
                                     return bytes_of_proof(make_proof(files->partial_path()));
                                   })
                         .at(0);
  const FolderProof proof = proof_of_bytes(told);
  const std::vector<Bytes> shares = parts.exchange("checkpoint", [&] {
    const auto own = static_cast<std::size_t>(parts.process());
    return bytes_of_text(write_pieces(proof, own, header_room, pieces));
  });
  parts.exchange("checkpoint", [&] {
    if (files == nullptr) return Bytes();
    for (std::size_t i = 0; i < shares.size(); ++i)
      files->add_share(text_of_bytes(shares[i]), worker_name(i));
    remove_proof(proof);
    return Bytes();
  });
  return files;
}

}  // namespace cohort::checkpoint
