// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/iterator_handshake.h"

#include "cohort/core/error.h"
#include "cohort/core/fields.h"

namespace cohort::input {

template <class Codec>
void fields(Codec& codec, IteratorHandshake& handshake) {
  std::int64_t steps = handshake.steps.value_or(-1);
  codec(Choice(handshake.sharding_mode, ShardingMode::by_function, "a sharding mode"),
        handshake.replicas, handshake.structure, handshake.fields, handshake.spec,
        handshake.cardinality, handshake.global_batch_size, handshake.is_infinite,
        handshake.cannot_fail, steps, Fixed{handshake.order.seed}, handshake.order.pass,
        handshake.num_iterators, Fixed{handshake.fingerprint});
  if (Codec::kReads && steps >= 0) handshake.steps = steps;
}

namespace {

bool fit(const TensorSpec& a, const TensorSpec& b) {
  if (a.dtype != b.dtype) return false;
  if (!a.sizes || !b.sizes) return true;
  if (a.sizes->size() != b.sizes->size()) return false;
  for (std::size_t d = 1; d < a.sizes->size(); ++d) {
    const std::int64_t of_a = (*a.sizes)[d];
    const std::int64_t of_b = (*b.sizes)[d];
    if (of_a >= 0 && of_b >= 0 && of_a != of_b) return false;
  }
  return true;
}

std::string text_of_data(const IteratorHandshake& one) {
  std::string text = one.cardinality == kInfiniteCardinality ? "infinitely many batches"
                     : one.cardinality == kUnknownCardinality
                         ? "an unknown number of batches"
                         : std::to_string(one.cardinality) + " batches";
  if (one.global_batch_size > 0) text += " of " + std::to_string(one.global_batch_size) + " rows";
  return text;
}

bool fit(const IteratorHandshake& a, const IteratorHandshake& b) {
  if (a.structure != b.structure || a.fields.size() != b.fields.size()) return false;
  for (std::size_t i = 0; i < a.fields.size(); ++i) {
    if (!fit(a.fields[i], b.fields[i])) return false;
  }
  return true;
}

}  // namespace

IteratorHandshake IteratorHandshake::of(const InputDistribution& distribution) {
  const ElementSpec& spec = distribution.spec().component;
  return {.sharding_mode = distribution.sharding_mode(),
          .replicas = distribution.host().num_local_replicas(),
          .structure = spec.structure.structure(),
          .fields = spec.fields,
          .spec = spec.to_string(),
          .cardinality = distribution.divides_one_dataset() ? distribution.cardinality() : 0,
          .global_batch_size =
              distribution.divides_one_dataset() ? distribution.global_batch_size() : 0,
          .is_infinite = distribution.cardinality() == kInfiniteCardinality,
          .cannot_fail = distribution.cannot_fail(),
          .steps = distribution.num_steps(),
          .fingerprint = distribution.divides_one_dataset() ? distribution.fingerprint() : 0};
}

Bytes IteratorHandshake::encode() const { return encode_fields(*this); }

IteratorHandshake IteratorHandshake::decode(const Bytes& bytes) {
  return decode_fields<IteratorHandshake>(bytes, "start of a distributed iterator");
}

void check_alike(const std::vector<IteratorHandshake>& handshakes) {
  const IteratorHandshake& first = handshakes.front();
  for (std::size_t i = 1; i < handshakes.size(); ++i) {
    COHORT_CHECK(handshakes[i].sharding_mode == first.sharding_mode &&
                     handshakes[i].replicas == first.replicas,
                 ErrorCode::invalid_argument,
                 "[input.iterator] expected one sharding mode on all workers, got ", first.replicas,
                 " replicas on worker:0 and ", handshakes[i].replicas, " on worker:", i,
                 ", or other policies; build the same dataset and strategy on all");
  }
  for (std::size_t i = 1; i < handshakes.size(); ++i) {
    COHORT_CHECK(handshakes[i].global_batch_size == first.global_batch_size &&
                     handshakes[i].cardinality == first.cardinality,
                 ErrorCode::invalid_argument,
                 "[input.iterator] expected the same dataset on all workers, got ",
                 text_of_data(first), " on worker:0 and ", text_of_data(handshakes[i]),
                 " on worker:", i,
                 "; give all the same dataset, which is divided between them, or let each make its "
                 "own with distribute_datasets_from_function()");
  }
  for (std::size_t i = 0; i < handshakes.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      COHORT_CHECK(fit(handshakes[k], handshakes[i]), ErrorCode::invalid_argument,
                   "[input.iterator] expected elements of one spec on all workers, got ",
                   handshakes[k].spec, " on worker:", k, " and ", handshakes[i].spec,
                   " on worker:", i, "; make datasets of one spec on all");
    }
  }
  for (std::size_t i = 1; i < handshakes.size(); ++i) {
    COHORT_CHECK(handshakes[i].fingerprint == first.fingerprint, ErrorCode::invalid_argument,
                 "[input.iterator] expected the same dataset on all workers, got others on "
                 "worker:0 and worker:",
                 i,
                 ": an op of the pipeline, a seed, the name of a file or a value differs, so some "
                 "elements would be used twice and others never; build the same dataset with the "
                 "same seeds on all, or let each make its own with "
                 "distribute_datasets_from_function()");
  }
}

}  // namespace cohort::input
