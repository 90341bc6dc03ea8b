// SPDX-License-Identifier: Apache-2.0
// A graph as bytes (docs/formats/pipeline.md).
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/node.h"
#include "cohort/function/frozen_tensor.h"

namespace cohort::data {

class GraphWriter;
class ProgramSupply;  // program_supply.h

// The bytes of a graph without its largest tensors, which the graph itself has in memory. A value
// type.
class COHORT_API GraphBytes {
 public:
  // All bytes. Throws failed_precondition if a tensor was written to since the graph was encoded.
  Bytes joined() const;
  // The bytes that this object holds itself.
  std::size_t own_bytes() const { return own_.size(); }
  bool is_same(const GraphBytes& other) const;

 private:
  friend class GraphWriter;
  struct LeftOut {
    std::size_t offset;  // in `own_`
    at::Tensor tensor;
    std::optional<function::FrozenTensor> frozen;  // unset: of strings, which never change
  };
  Bytes own_;
  std::vector<LeftOut> left_out_;
};

struct EncodedGraph {
  GraphBytes bytes;
  // Stateful functions whose state is not in the bytes, for example "'noise' of map, which draws
  // random numbers".
  std::vector<std::string> external_state;
  // For each op, the tensors that its functions' programs hold as constants.
  std::vector<std::vector<function::FrozenTensor>> frozen;
};
// All ops of a graph, in the order in which they are serialized.
std::vector<NodePtr> ops_of(const NodePtr& sink);
// Tensors are left out that would make the bytes themselves more than `own_bytes_max`.
EncodedGraph encode_graph(const NodePtr& sink,
                          std::size_t own_bytes_max = std::numeric_limits<std::size_t>::max());
// Appends to `states` the external state of an op with these attributes, and of the ops that its
// dataset function makes.
void add_external_state(std::string_view op, const Nest& attributes,
                        std::vector<std::string>& states);
// Reads a graph, whose functions get missing programs from `supply` if it is not null. data_loss
// for invalid bytes; unimplemented, naming the op, if this build has no such op. Safe for any
// bytes.
NodePtr decode_graph(std::span<const std::byte> bytes,
                     const std::shared_ptr<ProgramSupply>& supply = nullptr);

// Both apply ExternalStatePolicy to a pipeline's functions with state that its bytes and its saved
// positions do not contain: Dataset::serialize() under a policy, and `source`, whose save() applies
// it.
Bytes serialize(const Dataset& dataset, ExternalStatePolicy policy);
std::unique_ptr<ElementSource> with_policy(std::unique_ptr<ElementSource> source,
                                           const Dataset& dataset, ExternalStatePolicy policy);

}  // namespace cohort::data
