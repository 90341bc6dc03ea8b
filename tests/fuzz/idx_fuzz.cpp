// SPDX-License-Identifier: Apache-2.0
// IDX files: an array with or without labels.
#include <optional>

#include "cohort/data/dataset.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

void read_some(const Dataset& dataset) {
  Iterator iterator = dataset.batch(3).iterator();
  for (int i = 0; i < 8; ++i) {
    if (!iterator.try_next()) return;
  }
}

void run(Input input) {
  static const ScratchFile images("images");
  static const ScratchFile labels("labels");
  const std::size_t image_bytes = std::size_t{input.byte()} << 3;
  const bool has_labels = (input.byte() & 1) != 0;
  images.write(has_labels ? input.take(image_bytes) : input.rest());
  labels.write(input.rest());
  const IdxFiles files{.images = images.path(), .labels = has_labels ? labels.path() : ""};
  only_fails_with({ErrorCode::data_loss}, [&] { read_some(Dataset::idx(files)); });
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run({data, size});
  return 0;
}
