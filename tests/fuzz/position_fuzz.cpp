// SPDX-License-Identifier: Apache-2.0
// A saved position of an iterator, as in a checkpoint: any bytes are restored or refused, and a
// restored iterator can run and be saved again.
#include <optional>

#include "tests/fuzz/pipelines.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

void run(Input input) {
  const Dataset& dataset = pipelines()[input.byte() % pipelines().size()];
  Iterator iterator = dataset.iterator({.seed = 1, .iteration = 0, .data_dirs = std::nullopt});
  const std::string_view rest = input.rest();
  if (!only_fails_with({ErrorCode::data_loss, ErrorCode::invalid_argument}, [&] {
        iterator.restore(std::as_bytes(std::span(rest.data(), rest.size())));
      })) {
    try {
      iterator.try_next();
    } catch (const Error&) {
    }
    return;
  }
  iterator.save();
  for (int i = 0; i < 5; ++i) {
    // A position may hold errors of any code in place of elements.
    try {
      if (!iterator.try_next()) return;
    } catch (const Error&) {
    }
  }
  iterator.save();
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run({data, size});
  return 0;
}
