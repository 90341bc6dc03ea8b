// SPDX-License-Identifier: Apache-2.0
// A graph as bytes (docs/formats/pipeline.md).
#pragma once

#include <span>

#include "cohort/core/bytes.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

Bytes encode_graph(const NodePtr& sink);
// Total: any bytes give a graph, data_loss, or unimplemented naming the op that this build does not
// have.
NodePtr decode_graph(std::span<const std::byte> bytes);

}  // namespace cohort::data
