// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/worker_values.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/element.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

using Parts = Reduction::Parts;

// A part travels as four tensors: its value; its count and type; of sparse ones where the rows are,
// and the shape of the whole.
constexpr std::size_t kFieldsOfParts = 4;

at::Tensor sent(const at::Tensor& tensor) {
  return StringTensor::is(tensor) ? tensor : tensor.detach().cpu();
}

void add_fields(Fields& fields, const Parts& parts) {
  fields.push_back(sent(parts.value));
  fields.push_back(at::tensor({parts.count, static_cast<std::int64_t>(parts.type),
                               static_cast<std::int64_t>(parts.is_sparse())}));
  fields.push_back(parts.is_sparse() ? sent(parts.indices) : at::empty({0}, at::kLong));
  fields.push_back(at::tensor(parts.sizes, at::kLong));
}

Parts parts_at(const Fields& fields, std::size_t first) {
  const at::Tensor& numbers = fields[first + 1];
  const auto number = [&](std::int64_t i) { return numbers[i].item<std::int64_t>(); };
  Parts parts{
      .value = fields[first], .count = number(0), .type = static_cast<at::ScalarType>(number(1))};
  if (number(2) == 0) return parts;
  parts.indices = fields[first + 2];
  const at::Tensor& sizes = fields[first + 3];
  for (std::int64_t i = 0; i < sizes.numel(); ++i)
    parts.sizes.push_back(sizes[i].item<std::int64_t>());
  return parts;
}

Bytes encoded(const Contributions& own) {
  Fields fields;
  for (const std::vector<Parts>& of_leaf : own) {
    for (const Parts& parts : of_leaf) add_fields(fields, parts);
  }
  ByteWriter writer;
  data::write_fields(writer, fields);
  return writer.take();
}

bool fits_along(const TensorSpec& a, const TensorSpec& b, std::int64_t axis) {
  if (a.dtype != b.dtype || a.sizes->size() != b.sizes->size()) return false;
  for (std::size_t d = 0; d < a.sizes->size(); ++d) {
    if (static_cast<std::int64_t>(d) != axis && (*a.sizes)[d] != (*b.sizes)[d]) return false;
  }
  return true;
}

}  // namespace

Contributions of_all_workers(StrategyWorkers* workers, std::string_view call,
                             const std::function<std::string()>& request_of,
                             const std::function<Contributions()>& own_contributions,
                             std::optional<Duration> timeout) {
  if (workers == nullptr || !workers->are_several()) return own_contributions();
  Contributions own;
  const auto encode = [&]() -> StrategyWorkers::Message {
    own = own_contributions();
    std::string request = request_of();
    // A worker whose nest has other leaves that are the same in its replicas sends other counts.
    request += "\nvalues of so many replicas:";
    for (const std::vector<Parts>& of_leaf : own) request += " " + std::to_string(of_leaf.size());
    return {std::move(request), encoded(own)};
  };
  const std::vector<Bytes> made = workers->exchange({.call = call, .timeout = timeout}, encode);
  Contributions all(own.size());
  for (const Bytes& bytes : made) {
    ByteReader reader(bytes, call);
    const Fields fields = data::read_fields(reader);
    std::size_t next = 0;
    for (std::size_t leaf = 0; leaf < own.size(); ++leaf) {
      for (std::size_t i = 0; i < own[leaf].size(); ++i, next += kFieldsOfParts) {
        COHORT_CHECK(next + kFieldsOfParts <= fields.size(), ErrorCode::data_loss, "[strategy.",
                     call, "] expected the values of another worker, got too few of them");
        all[leaf].push_back(parts_at(fields, next));
      }
    }
  }
  return all;
}

void check_worker(int from, int count, std::string_view call) {
  COHORT_CHECK(from >= 0 && from < count, ErrorCode::invalid_argument, "[strategy.", call,
               "] expected the number of a worker, from 0 to ", count - 1, ", got ", from);
}

std::vector<at::Tensor> of_one_worker(StrategyWorkers& workers, int from, std::string_view call,
                                      const std::function<std::string()>& request_of,
                                      const std::function<std::vector<at::Tensor>()>& own) {
  // A value that cannot be sent is refused on all workers, also where it is not sent.
  const auto make = [&]() -> StrategyWorkers::Message {
    check_worker(from, workers.count(), call);
    const std::vector<at::Tensor> tensors = own();
    ByteWriter writer;
    if (workers.own() == from) data::write_fields(writer, tensors);
    return {request_of(), writer.take()};
  };
  const std::vector<Bytes> made = workers.exchange({.call = call}, make);
  ByteReader reader(made.at(static_cast<std::size_t>(from)), call);
  return data::read_fields(reader);
}

void check_is_dense(const at::Tensor& tensor, std::string_view call) {
  const bool is_dense =
      tensor.defined() && (StringTensor::is(tensor) || tensor.layout() == at::kStrided);
  COHORT_CHECK(tensor.defined(), ErrorCode::invalid_argument, "[strategy.", call,
               "] expected tensors, got an undefined one");
  COHORT_CHECK(is_dense, ErrorCode::unimplemented, "[strategy.", call,
               "] expected dense tensors, got layout ", tensor.layout(),
               "; make it dense first, with to_dense()");
}

at::Tensor concatenated(const std::vector<Reduction::Parts>& parts, std::int64_t axis,
                        std::string_view call) {
  const at::Tensor& first = parts.front().value;
  const TensorSpec spec = TensorSpec::of(first);
  COHORT_CHECK(axis >= 0 && axis < first.dim(), ErrorCode::invalid_argument, "[strategy.", call,
               "] expected an axis of ", spec.to_string(), ", got ", axis,
               first.dim() == 0 ? "; a scalar has none: reshape it to {1} in run()" : "");
  std::vector<at::Tensor> tensors = {first};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const TensorSpec other = TensorSpec::of(parts[i].value);
    COHORT_CHECK(fits_along(spec, other, axis), ErrorCode::invalid_argument, "[strategy.", call,
                 "] expected components of one dtype and rank, and of one size in each dimension "
                 "but axis ",
                 axis, ", got ", spec.to_string(), " and ", other.to_string(), " of replica ", i,
                 "; make them alike inside run() first");
    tensors.push_back(parts[i].value);
  }
  if (StringTensor::is(first)) {
    COHORT_CHECK(axis == 0, ErrorCode::unimplemented, "[strategy.", call,
                 "] expected axis 0 for strings, got ", axis);
    return StringTensor::concatenate(tensors);
  }
  for (at::Tensor& tensor : tensors) tensor = tensor.to(first.device());
  return at::cat(tensors, axis);
}

at::Tensor tensor_of(const Nest& leaf, std::string_view call) {
  if (leaf.kind() == Nest::Kind::integer) return at::scalar_tensor(leaf.integer(), at::kLong);
  if (leaf.kind() == Nest::Kind::real) return at::scalar_tensor(leaf.real(), at::kFloat);
  COHORT_CHECK(leaf.is_tensor(), ErrorCode::invalid_argument, "[strategy.", call,
               "] expected tensors or numbers, got ", name_of(leaf.kind()));
  return leaf.tensor();
}

Nest packed(const Nest& like, std::vector<Nest> leaves) {
  std::size_t i = 0;
  return like.map_leaves([&](const Nest&) { return std::move(leaves[i++]); });
}

PerReplica<Nest> as_nests(const PerReplica<at::Tensor>& value) {
  if (!value.is_wrapped()) return PerReplica<Nest>::bare(Nest(value.value()));
  std::vector<Nest> nests(value.local_results().begin(), value.local_results().end());
  return value.is_mirrored() ? PerReplica<Nest>::mirrored(std::move(nests))
                             : PerReplica<Nest>(std::move(nests));
}

}  // namespace cohort::internal
