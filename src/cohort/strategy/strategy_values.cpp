// SPDX-License-Identifier: Apache-2.0
// Distributed input of a strategy, and reduce() and gather() of plain values.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/element.h"
#include "cohort/input/detail/input_host.h"
#include "cohort/strategy/detail/contexts.h"
#include "cohort/strategy/internal/reduction.h"
#include "cohort/strategy/strategy.h"

namespace cohort {
namespace {

// Row i holds the leaves of component i. Rows of all workers are in the order of their replicas.
using Leaves = std::vector<Fields>;

// Checks a count that was read from another worker's bytes.
void check_alike(std::size_t got, std::size_t expected, std::string_view unit,
                 std::string_view what) {
  COHORT_CHECK(got == expected, ErrorCode::invalid_argument, "[strategy.", what,
               "] expected values of one structure from all workers, got ", got, " ", unit,
               " from one and ", expected, " from another; call it with the same on each");
}

// Collects the leaves of all workers, which make the same request: the call with its arguments, and
// the structure of the value. An error of `own_leaves` on one worker is thrown on all, since
// the others already wait for that worker.
Leaves of_all_workers(const input::InputHost& host, const std::function<Leaves()>& own_leaves,
                      std::string_view what, const std::function<std::string()>& request_of) {
  if (host.num_workers() == 1) return own_leaves();
  const input::WorkerCalls::Running running(*host.worker_calls, what);
  Leaves own;
  std::string request;
  const auto encoded = [&] {
    own = own_leaves();
    request = request_of();
    ByteWriter writer;
    writer.text(request);
    writer.varint(own.size());
    for (Fields& fields : own) {
      for (at::Tensor& field : fields) {
        if (!StringTensor::is(field)) field = field.detach().cpu();
      }
      data::write_fields(writer, fields);
    }
    return writer.take();
  };
  const std::shared_ptr<collective::Group> group = host.group->split();
  Leaves all;
  for (const Bytes& bytes :
       collective::exchange_result(*group, encoded, what, Deadline::after(host.timeout))) {
    ByteReader reader(bytes, what);
    const std::string other = reader.text();
    COHORT_CHECK(other == request, ErrorCode::invalid_argument, "[strategy.", what,
                 "] expected one call on all workers, got ", request, " on one and ", other,
                 " on another; make the same calls in the same order on each");
    const std::size_t count = reader.count();
    for (std::size_t left = count; left > 0; --left) {
      all.push_back(data::read_fields(reader));
      check_alike(all.back().size(), own.front().size(), "fields", what);
    }
    check_alike(count, own.size(), "components", what);
  }
  return all;
}

const at::Tensor& number_of(const Nest& leaf, std::string_view method) {
  COHORT_CHECK(leaf.is_tensor(), ErrorCode::invalid_argument, "[strategy.", method,
               "] expected tensors, got ", name_of(leaf.kind()));
  return leaf.tensor();
}

Fields tensors_of(const Nest& component, std::string_view method) {
  Fields fields;
  for (const Nest& leaf : component.flatten()) fields.push_back(number_of(leaf, method));
  return fields;
}

Nest packed(const Nest& like, Fields fields) {
  std::size_t i = 0;
  return like.map_leaves([&](const Nest&) { return Nest(std::move(fields[i++])); });
}

// For the exchange with other workers, a part is two tensors: its value, and its count and type.
Fields fields_of(const internal::Reduction::Parts& parts) {
  return {parts.value, at::tensor({parts.count, static_cast<std::int64_t>(parts.type)})};
}

internal::Reduction::Parts parts_of(const Fields& fields, std::size_t leaf) {
  const at::Tensor& numbers = fields[2 * leaf + 1];
  return {.value = fields[2 * leaf],
          .count = numbers[0].item<std::int64_t>(),
          .type = static_cast<at::ScalarType>(numbers[1].item<std::int64_t>())};
}

bool is_zero(const Nest& value) {
  return (value.kind() == Nest::Kind::integer && value.integer() == 0) ||
         (value.kind() == Nest::Kind::real && value.real() == 0);
}

bool fits_along(const TensorSpec& a, const TensorSpec& b, std::int64_t axis) {
  if (a.dtype != b.dtype || a.sizes->size() != b.sizes->size()) return false;
  for (std::size_t d = 0; d < a.sizes->size(); ++d) {
    if (static_cast<std::int64_t>(d) != axis && (*a.sizes)[d] != (*b.sizes)[d]) return false;
  }
  return true;
}

at::Tensor gathered(const Leaves& all, std::size_t leaf, std::int64_t axis) {
  // A single component may have any shape and axis, as in TensorFlow.
  if (all.size() == 1) return all.front()[leaf];
  std::vector<at::Tensor> parts;
  for (const Fields& fields : all) parts.push_back(fields[leaf]);
  const at::Tensor& first = parts.front();
  const TensorSpec spec = TensorSpec::of(first);
  COHORT_CHECK(axis >= 0 && axis < first.dim(), ErrorCode::invalid_argument,
               "[strategy.gather] expected an axis of ", spec.to_string(), ", got ", axis);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const TensorSpec other = TensorSpec::of(parts[i]);
    COHORT_CHECK(fits_along(spec, other, axis), ErrorCode::invalid_argument,
                 "[strategy.gather] expected components of one dtype and rank, and of one size in "
                 "each dimension but axis ",
                 axis, ", got ", spec.to_string(), " and ", other.to_string(), " of replica ", i,
                 "; make them alike inside run() first");
  }
  if (StringTensor::is(first)) {
    COHORT_CHECK(axis == 0, ErrorCode::unimplemented,
                 "[strategy.gather] expected axis 0 for strings, got ", axis);
    return StringTensor::concatenate(parts);
  }
  for (at::Tensor& part : parts) part = part.to(first.device());
  return at::cat(parts, axis);
}

PerReplica<Nest> as_nests(const PerReplica<at::Tensor>& value) {
  if (!value.is_wrapped()) return PerReplica<Nest>::bare(Nest(value.value()));
  std::vector<Nest> nests(value.local_results().begin(), value.local_results().end());
  return value.is_mirrored() ? PerReplica<Nest>::mirrored(std::move(nests))
                             : PerReplica<Nest>(std::move(nests));
}

// The leaves of each local component. A value that is not distributed counts as one component.
Leaves local_leaves(const input::InputHost& host, const PerReplica<Nest>& value,
                    std::string_view method) {
  const std::size_t replicas =
      value.is_wrapped() ? static_cast<std::size_t>(host.num_local_replicas()) : 1;
  COHORT_CHECK(value.size() == replicas, ErrorCode::invalid_argument, "[strategy.", method,
               "] expected ", replicas, " components, got ", value.size(),
               "; pass a result of run() of the same strategy");
  Leaves leaves;
  for (const Nest& component : value.local_results()) {
    const std::string what = "[strategy." + std::string(method) + "] the component of replica " +
                             std::to_string(leaves.size());
    Nest::check_same_structure(value[0], component, what);
    leaves.push_back(tensors_of(component, method));
  }
  return leaves;
}

// Whether the value needs no other component: it is not distributed, and there is one worker. Such
// a value may also be a host value.
bool is_whole(const PerReplica<Nest>& value, const input::InputHost& host) {
  return !value.is_wrapped() && host.num_workers() == 1;
}

}  // namespace

DistributedDataset Strategy::distribute_dataset(const Dataset& dataset,
                                                const InputOptions& options) {
  internal::check_cross_replica_or_default(*this, "distribute_dataset");
  return DistributedDataset::from_dataset(input_host(), dataset, options);
}

DistributedDataset Strategy::distribute_datasets_from_function(const DatasetFunction& fn,
                                                               const InputOptions& options) {
  internal::check_cross_replica_or_default(*this, "distribute_datasets_from_function");
  return DistributedDataset::from_function(input_host(), fn, options);
}

PerReplica<Nest> Strategy::distribute_values_from_function(const ValueFunction& value_fn) {
  internal::check_cross_replica_or_default(*this, "distribute_values_from_function");
  return distributed_values(*input_host(), value_fn);
}

Nest Strategy::reduce_along(ReduceOp op, const PerReplica<Nest>& value,
                            const std::optional<Axes>& axes) {
  internal::check_cross_replica_or_default(*this, "reduce");
  const internal::Reduction reduction(op, axes);
  if (!value.is_wrapped() && num_replicas_in_sync() == 1) {
    if (!axes) return value.value();
    return value.value().map_leaves([&](const Nest& leaf) -> Nest {
      return reduction.result(reduction.parts(number_of(leaf, "reduce")));
    });
  }
  const std::shared_ptr<const input::InputHost> host = input_host();
  const bool is_of_all = is_whole(value, *host);
  if (!axes && (is_of_all || value.is_mirrored())) {
    if (op == ReduceOp::mean || is_zero(value[0])) return value[0];
    internal::throw_error(ErrorCode::invalid_argument,
                          "[strategy.reduce] expected a value of each replica to sum, got one that "
                          "is the same for all ",
                          num_replicas_in_sync(), "; multiply it, or return it from run()");
  }
  const auto local_parts = [&] {
    Leaves parts;
    for (const Fields& component : local_leaves(*host, value, "reduce")) {
      Fields& fields = parts.emplace_back();
      for (const at::Tensor& leaf : component) {
        Fields two = fields_of(reduction.parts(leaf));
        std::move(two.begin(), two.end(), std::back_inserter(fields));
      }
    }
    // Each replica has the same value.
    if (is_of_all) parts.resize(static_cast<std::size_t>(num_replicas_in_sync()), parts[0]);
    return parts;
  };
  const Leaves all = of_all_workers(*host, local_parts, "reduce", [&] {
    std::string request = std::string("reduce(") + (op == ReduceOp::sum ? "sum" : "mean");
    if (axes) {
      request += ", axis";
      for (const std::int64_t axis : axes->numbers()) request += " " + std::to_string(axis);
    }
    return request + ") of " + value[0].structure();
  });
  Fields results;
  for (std::size_t leaf = 0; 2 * leaf < all.front().size(); ++leaf) {
    std::vector<internal::Reduction::Parts> parts;
    for (const Fields& fields : all) parts.push_back(parts_of(fields, leaf));
    results.push_back(reduction.result(reduction.sum(parts)));
  }
  return packed(value[0], std::move(results));
}

at::Tensor Strategy::reduce_along(ReduceOp op, const PerReplica<at::Tensor>& value,
                                  const std::optional<Axes>& axes) {
  return reduce_along(op, as_nests(value), axes).tensor();
}

Nest Strategy::gather(const PerReplica<Nest>& value, std::int64_t axis) {
  internal::check_cross_replica_or_default(*this, "gather");
  if (!value.is_wrapped() && num_replicas_in_sync() == 1) return value.value();
  const std::shared_ptr<const input::InputHost> host = input_host();
  if (is_whole(value, *host)) return value.value();
  const Leaves all = of_all_workers(
      *host, [&] { return local_leaves(*host, value, "gather"); }, "gather",
      [&] { return "gather(axis " + std::to_string(axis) + ") of " + value[0].structure(); });
  Fields results;
  for (std::size_t leaf = 0; leaf < all.front().size(); ++leaf) {
    results.push_back(gathered(all, leaf, axis));
  }
  return packed(value[0], std::move(results));
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& value, std::int64_t axis) {
  return gather(as_nests(value), axis).tensor();
}

}  // namespace cohort
