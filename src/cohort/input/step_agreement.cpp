// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/step_agreement.h"

#include <string>

namespace cohort {
namespace {

Bytes encode(const StepVote& vote) {
  ByteWriter writer;
  writer.zigzag(vote.components);
  writer.zigzag(vote.examples);
  writer.u8(vote.error ? 1 : 0);
  if (vote.error) {
    writer.u8(static_cast<std::uint8_t>(vote.error->code()));
    writer.u8(static_cast<std::uint8_t>(vote.error->cause()));
    writer.text(vote.error->message());
    writer.varint(vote.error->context().size());
    for (const std::string& line : vote.error->context()) writer.text(line);
  }
  return writer.take();
}

void add(const Bytes& bytes, std::size_t worker, StepVerdict& sum) {
  ByteReader reader(bytes, "vote of a worker");
  sum.components += reader.zigzag();
  sum.examples += reader.zigzag();
  if (reader.u8() == 0 || sum.error) return;
  const auto code = static_cast<ErrorCode>(reader.u8());
  const auto cause = static_cast<ErrorCause>(reader.u8());
  Error error(code, reader.text(), cause);
  for (std::size_t left = reader.count(); left > 0; --left) {
    // NOLINTNEXTLINE(bugprone-use-after-move): during() adds in place
    static_cast<void>(std::move(error).during(reader.text()));
  }
  sum.error = std::move(error).at("worker:" + std::to_string(worker));
}

}  // namespace

StepVerdict StepAgreement::vote(const StepVote& mine, Deadline deadline) {
  const std::vector<Bytes> votes = exchange(encode(mine), "the data of the next step", deadline);
  StepVerdict verdict;
  for (std::size_t worker = 0; worker < votes.size(); ++worker) {
    add(votes[worker], worker, verdict);
  }
  return verdict;
}

}  // namespace cohort
