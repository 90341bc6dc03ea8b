// SPDX-License-Identifier: Apache-2.0
// The file manifest.json: what a checkpoint has, and where (docs/formats/checkpoint.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/tensor_spec.h"

namespace cohort::checkpoint {

// Some rows of a tensor, which were written at once. A tensor without dimensions has one row.
struct PartEntry {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::uint32_t checksum = 0;  // CRC-32C of their bytes
  // Empty: the tensor's. Several writers have a file each; the tensor of this name there has the
  // rows of its parts, one after the other.
  std::string file = {};
};

struct TensorEntry {
  TensorSpec spec = {};
  std::string file = {};              // of the checkpoint's folder; the tensor has its name there
  std::vector<PartEntry> parts = {};  // all rows, in order
};

// The slots that an optimizer has for one variable.
struct SlotsEntry {
  std::string optimizer = {};
  std::string rule = {};
  std::vector<std::string> tensors = {};  // their names, in the order of the rule
  bool operator==(const SlotsEntry&) const = default;
};

// The names are those of tensors.
struct VariableEntry {
  std::string name = {};  // also of the tensor with its value, which is that of read()
  TensorSpec spec = {};
  // The value of each replica, if the replicas may differ.
  std::vector<std::string> replicas = {};
  std::vector<SlotsEntry> slots = {};
  // A table has these: the keys of its rows; the keys without rows yet, and how many updates each
  // has had.
  std::string keys = {};
  std::string counted_keys = {};
  std::string counts = {};
  bool is_table() const { return !keys.empty(); }
};

// The state of an optimizer, or of something else that belongs to variables (AttachedState).
struct StateEntry {
  std::string key = {};
  std::string optimizer = {};  // these three: of AttachedState::OptimizerId
  std::string rule = {};
  std::string first_variable = {};
  std::string tensor = {};  // uint8 [bytes]
};

struct Manifest {
  std::int64_t step = 0;
  std::string cohort = {};    // the version that has written it
  std::string strategy = {};  // "MirroredStrategy"; empty: none
  std::string time = {};      // "2026-11-29T12:00:00Z"
  std::map<std::string, TensorEntry> tensors = {};
  std::vector<VariableEntry> variables = {};
  std::vector<StateEntry> states = {};
  std::vector<std::string> generators = {};           // one for each worker: uint8 [bytes]
  std::map<std::string, std::string> positions = {};  // of data: uint8 [bytes]
  std::map<std::string, std::string> values = {};     // JSON texts
};

// Throws invalid_argument for names that are no UTF-8.
std::string encode(const Manifest& manifest);
// Any text is safe. Throws data_loss, naming `path`, for one that encode() has not made, or that
// has changed since; unimplemented for one of a newer version.
Manifest parse_manifest(std::string_view text, const std::string& path);

// The same for what one of several writers has written: its tensors, of which others may have the
// other rows, and their variables. `writer`: for messages.
Manifest parse_share(std::string_view text, const std::string& writer);

}  // namespace cohort::checkpoint
