// SPDX-License-Identifier: Apache-2.0
// The messages by which a server writes its share of a cut into a folder itself, rather than send
// it (docs/decisions/0159-each-writer-has-its-files.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/rpc/frames/frame.h"
#include "cohort/rpc/messages.h"

namespace cohort::rpc {

// Begins the writing, which a thread of the server does, asks how far it is, or ends it. The answer
// comes at once, or at the end when nothing is written any more.
struct CutWrite {
  // Rows of a variable, or the server's rows of a table.
  struct Rows {
    std::uint64_t stored = 0;  // the number by which the server knows them
    std::string name = {};     // of the variable
    TensorSpec spec = {};      // of the whole variable
    std::int64_t first_row = 0;
    std::int64_t count = 0;  // 1 for a variable without dimensions; a table's are not counted
    bool is_table = false;
  };
  std::uint64_t cut = 0;
  bool is_end = false;  // the other members do not count
  std::uint64_t placement = 0;
  std::string folder = {};  // empty: asks
  // A file of the folder with this text, by which the server sees that it is the same folder.
  std::string proof_name = {};
  std::string proof_text = {};
  std::string prefix = {};        // of the names of the server's files
  std::uint64_t header_room = 0;  // about how many bytes the names and shapes of all tensors have
  std::vector<Rows> rows = {};    // those of one variable one after the other

  Frame to_frame();
  static CutWrite of(const Frame& frame);
};

struct CutWritten {
  std::uint64_t progress = 0;  // grows as long as the server gets on
  bool is_done = false;
  std::string share = {};  // when it is done: a manifest of what it has written
  // Slots without rows, such as counts of steps, are not written. The names of some tensors.
  std::vector<std::string> number_names = {};
  std::vector<at::Tensor> numbers = {};

  Frame to_frame();
  static CutWritten of(Frame frame);
};

}  // namespace cohort::rpc
