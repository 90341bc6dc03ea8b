// SPDX-License-Identifier: Apache-2.0
// Nests as bytes (docs/formats/pipeline.md): op attributes on the wire, buffered elements of a
// saved iterator.
#pragma once

#include <optional>
#include <span>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/element.h"

namespace cohort::data {

// A handle is invalid_argument: it lives in this process. Tensors must be dense and in host memory.
void write_nest(ByteWriter& writer, const Nest& nest);
// data_loss for anything that write_nest could not have written.
Nest read_nest(ByteReader& reader);

// A spec as an attribute and back; the latter throws data_loss.
Nest nest_of(const ElementSpec& spec);
ElementSpec spec_of(const Nest& nest);

// The bytes of a tensor of these sizes, which come from a file or a peer; nothing where they are
// more than `available`, or a size is negative.
std::optional<std::size_t> value_bytes(at::ScalarType dtype, std::span<const std::int64_t> sizes,
                                       std::size_t available);

}  // namespace cohort::data
