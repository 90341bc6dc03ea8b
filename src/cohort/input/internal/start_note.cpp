// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/start_note.h"

#include "cohort/core/error.h"

namespace cohort::input {
namespace {

void write_spec(ByteWriter& writer, const TensorSpec& spec) {
  writer.u8(static_cast<std::uint8_t>(spec.dtype));
  writer.u8(spec.sizes ? 1 : 0);
  if (spec.sizes) writer.sizes(*spec.sizes);
}

TensorSpec read_spec(ByteReader& reader) {
  TensorSpec spec{.dtype = static_cast<at::ScalarType>(reader.u8()), .sizes = {}};
  if (reader.u8() != 0) spec.sizes = reader.sizes();
  return spec;
}

// One worker may know a size that another does not, and the number of rows may differ.
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

bool fit(const StartNote& a, const StartNote& b) {
  if (a.structure != b.structure || a.fields.size() != b.fields.size()) return false;
  for (std::size_t i = 0; i < a.fields.size(); ++i) {
    if (!fit(a.fields[i], b.fields[i])) return false;
  }
  return true;
}

}  // namespace

StartNote StartNote::of(const Plan& plan) {
  const ElementSpec& spec = plan.spec().component;
  return {.dealing = plan.dealing(),
          .replicas = plan.host().num_local_replicas(),
          .structure = spec.structure.structure(),
          .fields = spec.fields,
          .spec = spec.to_string(),
          .is_infinite = plan.cardinality() == kInfiniteCardinality,
          .never_fails = plan.never_fails(),
          .steps = plan.num_steps()};
}

Bytes StartNote::encode() const {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(dealing));
  writer.zigzag(replicas);
  writer.text(structure);
  writer.varint(fields.size());
  for (const TensorSpec& field : fields) write_spec(writer, field);
  writer.text(spec);
  writer.u8(is_infinite ? 1 : 0);
  writer.u8(never_fails ? 1 : 0);
  writer.zigzag(steps.value_or(-1));
  writer.u64(seed);
  writer.varint(pass);
  return writer.take();
}

StartNote StartNote::decode(const Bytes& bytes) {
  ByteReader reader(bytes, "start of a distributed iterator");
  StartNote note;
  note.dealing = static_cast<Dealing>(reader.u8());
  note.replicas = reader.zigzag();
  note.structure = reader.text();
  for (std::size_t left = reader.count(2); left > 0; --left) {
    note.fields.push_back(read_spec(reader));
  }
  note.spec = reader.text();
  note.is_infinite = reader.u8() != 0;
  note.never_fails = reader.u8() != 0;
  if (const std::int64_t steps = reader.zigzag(); steps >= 0) note.steps = steps;
  note.seed = reader.u64();
  note.pass = reader.varint();
  return note;
}

// All workers compare the same notes in the same way, so this throws on all or on none.
void check_alike(const std::vector<StartNote>& notes) {
  const StartNote& first = notes.front();
  for (std::size_t i = 1; i < notes.size(); ++i) {
    COHORT_CHECK(notes[i].dealing == first.dealing && notes[i].replicas == first.replicas,
                 ErrorCode::invalid_argument,
                 "[input.iterator] expected one way to deal on all workers, got ", first.replicas,
                 " replicas on worker:0 and ", notes[i].replicas, " on worker:", i,
                 ", or other policies; build the same dataset and strategy on all");
  }
  for (std::size_t i = 0; i < notes.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      COHORT_CHECK(fit(notes[k], notes[i]), ErrorCode::invalid_argument,
                   "[input.iterator] expected elements of one spec on all workers, got ",
                   notes[k].spec, " on worker:", k, " and ", notes[i].spec, " on worker:", i,
                   "; make datasets of one spec on all");
    }
  }
}

}  // namespace cohort::input
