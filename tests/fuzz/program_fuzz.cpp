// SPDX-License-Identifier: Apache-2.0
// The bytes of a traced function, as a peer sends them.
#include "cohort/function/prepared_program.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

void run(std::span<const std::byte> bytes) {
  only_fails_with({ErrorCode::data_loss, ErrorCode::unimplemented}, [&] {
    const auto program = function::PreparedProgram::decode(bytes);
    require(program->identity() == function::identity_of(bytes), "another identity");
    require(program->info().draws.size() <= program->info().op_count, "draws that are no ops");
  });
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
