// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/step_agreement.h"

#include <string>
#include <utility>

#include "cohort/core/error_bytes.h"

namespace cohort {
namespace {

Bytes encode(const StepVote& vote) {
  ByteWriter writer;
  writer.zigzag(vote.components);
  writer.zigzag(vote.examples);
  writer.u8(vote.costs_batch ? 1 : 0);
  writer.u8(vote.error ? 1 : 0);
  if (vote.error) write_error(writer, *vote.error);
  return writer.take();
}

Error error_of_worker(ByteReader& reader, std::size_t worker) {
  return read_error(reader).at("worker:" + std::to_string(worker));
}

void add(const Bytes& bytes, std::size_t worker, StepVerdict& sum) {
  ByteReader reader(bytes, "vote of a worker");
  sum.components += reader.zigzag();
  sum.examples += reader.zigzag();
  if (reader.u8() != 0) sum.costs_batch = true;
  if (reader.u8() != 0 && !sum.error) sum.error = error_of_worker(reader, worker);
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

std::vector<Bytes> StepAgreement::exchange_made(const std::function<Bytes()>& make,
                                                std::string_view what, Deadline deadline) {
  ByteWriter mine;
  try {
    const Bytes made = make();
    mine.u8(0);
    mine.blob(made);
  } catch (...) {
    mine.u8(1);
    write_error(mine, current_error());
  }
  std::vector<Bytes> all = exchange(mine.take(), what, deadline);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    ByteReader reader(all[worker], what);
    if (reader.u8() != 0) throw error_of_worker(reader, worker);
    const std::span<const std::byte> made = reader.blob();
    all[worker] = Bytes(made.begin(), made.end());
  }
  return all;
}

}  // namespace cohort
