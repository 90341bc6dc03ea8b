// SPDX-License-Identifier: Apache-2.0
// The bytes of a pipeline, as a peer sends them. A parsed pipeline must be unchanged after writing
// and reading.
#include <optional>

#include "cohort/data/dataset.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

void run(std::span<const std::byte> bytes) {
  std::optional<Dataset> dataset;
  only_fails_with({ErrorCode::data_loss, ErrorCode::unimplemented},
                  [&] { dataset = Dataset::deserialize(bytes); });
  if (!dataset) return;
  dataset->cardinality();
  const Bytes again = dataset->serialize();
  require(Dataset::deserialize(again).serialize() == again, "a pipeline changed on its journey");
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
