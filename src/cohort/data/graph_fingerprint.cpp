// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph_fingerprint.h"

#include <array>
#include <string_view>

#include "cohort/core/bytes.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/field_kernels/fingerprint.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {
namespace {

// Attributes that change no element, whichever op has them.
constexpr std::array<std::string_view, 3> kWithoutEffect{"buffer_bytes", "deterministic",
                                                         "num_parallel_calls"};

std::uint64_t hash_of_bytes(const void* bytes, std::size_t count) {
  return fingerprint64({static_cast<const char*>(bytes), count});
}

// Replaces a tensor by its dtype, its sizes and a hash of its values, so that no copy is made of
// large ones.
Nest without_values(const Nest& leaf) {
  if (!leaf.is_tensor() || StringTensor::is(leaf.tensor())) return leaf;
  const at::Tensor values = leaf.tensor().contiguous();
  const std::uint64_t hash = hash_of_bytes(values.data_ptr(), values.nbytes());
  return Nest::list({Nest(static_cast<std::int64_t>(values.scalar_type())),
                     Nest::list(Nest::Items(values.sizes().begin(), values.sizes().end())),
                     Nest(static_cast<std::int64_t>(hash))});
}

}  // namespace

std::uint64_t Node::fingerprint() const {
  fingerprint_once_.call([this] {
    Attributes attributes = identity();
    for (const std::string_view name : kWithoutEffect) attributes.erase(std::string(name));
    ByteWriter writer;
    writer.text(op_);
    writer.varint(inputs_.size());
    for (const NodePtr& input : inputs_) writer.u64(input->fingerprint());
    write_nest(writer, Nest::map(std::move(attributes)).map_leaves(without_values));
    fingerprint_ = hash_of_bytes(writer.bytes().data(), writer.bytes().size());
  });
  return fingerprint_;
}

std::uint64_t graph_fingerprint(const Dataset& dataset) { return dataset.node()->fingerprint(); }

}  // namespace cohort::data
