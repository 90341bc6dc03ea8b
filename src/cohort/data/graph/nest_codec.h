// SPDX-License-Identifier: Apache-2.0
// Nests as bytes (docs/formats/pipeline.md), for op attributes and for buffered elements of a saved
// iterator.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"

namespace cohort::data {

// Tensors must be dense and in host memory. invalid_argument for a handle, which cannot be
// serialized.
// `leave_out`: if it returns true for a tensor, nothing is written for that one.
using LeaveOut = std::function<bool(const at::Tensor& tensor)>;
void write_nest(ByteWriter& writer, const Nest& nest, const LeaveOut& leave_out = {});
// data_loss for anything that write_nest could not have written.
Nest read_nest(ByteReader& reader);

// Converts a spec to an attribute and back; spec_of() throws data_loss if it is invalid.
Nest nest_of(const ElementSpec& spec);
ElementSpec spec_of(const Nest& nest);

// The number of bytes of a tensor of these sizes, which come from a file or a peer; nullopt if it
// is more than `available` or a size is negative.
std::optional<std::size_t> value_bytes(at::ScalarType dtype, std::span<const std::int64_t> sizes,
                                       std::size_t available);

}  // namespace cohort::data
