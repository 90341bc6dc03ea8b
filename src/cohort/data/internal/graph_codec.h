// SPDX-License-Identifier: Apache-2.0
// A graph as bytes (docs/formats/pipeline.md).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/internal/node.h"
#include "cohort/function/frozen_tensor.h"

namespace cohort::data {

class ProgramSupply;  // program_supply.h

struct EncodedGraph {
  Bytes bytes;
  // State of functions that is not in the bytes, as "'noise' of map, which draws random numbers".
  std::vector<std::string> external_state;
  // Of each op: what the programs of its functions hold as constants.
  std::vector<std::vector<function::FrozenTensor>> frozen;
};
// In the order of the bytes.
std::vector<NodePtr> ops_of(const NodePtr& sink);
EncodedGraph encode_graph(const NodePtr& sink);
// That of one op with these attributes, and of the ops that its function makes.
void add_external_state(std::string_view op, const Nest& attributes,
                        std::vector<std::string>& states);
// Its functions get the programs that they lack from `supply`, where there is one.
// Total: any bytes give a graph, data_loss, or unimplemented naming the op that this build does not
// have.
NodePtr decode_graph(std::span<const std::byte> bytes,
                     const std::shared_ptr<ProgramSupply>& supply = nullptr);

}  // namespace cohort::data
