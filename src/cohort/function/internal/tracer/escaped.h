// SPDX-License-Identifier: Apache-2.0
// What traced steps have left outside of themselves: tensors with the values of an example, which
// no call changes.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace cohort::function {

// Memory that a pass has made from its example's values. A value type.
struct ExampleMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::string maker;  // "aten::mul"; empty: the example itself

  bool is_alive() const { return storage.use_count() > 0; }
};

// From now on these are known for as long as they live. Thread-safe.
void note_escaped(std::vector<ExampleMemory> escaped);

// How a message names the origin of this memory; empty where it has not escaped from a trace.
// Thread-safe.
std::string origin_of_escaped(const c10::StorageImpl* storage);

// "aten::mul made it", or that it is part of the example.
std::string origin_of(const ExampleMemory& memory);

}  // namespace cohort::function
