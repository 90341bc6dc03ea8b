// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/job_position.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::input {
namespace {

constexpr std::uint8_t kVersion = 3;
constexpr std::int64_t kNumberMax = 1 << 20;  // of workers and replicas

bool is_sound_feed(const FeedPosition& feed) {
  return std::all_of(feed.streams.begin(), feed.streams.end(),
                     [](const StreamPosition& stream) { return stream.num <= kNumberMax; });
}

bool is_same(const StreamPosition& a, const StreamPosition& b) {
  return a.num == b.num && a.index == b.index && a.drawn == b.drawn && a.shares.empty() &&
         b.shares.empty();
}

// Mini-batches drawn but not handed out, in order.
std::vector<Fields> leftovers_of(FeedPosition& feed) {
  std::vector<Fields> all = std::move(feed.undelivered);
  for (std::vector<Fields>* more : {&feed.rest, &feed.leading}) {
    std::move(more->begin(), more->end(), std::back_inserter(all));
  }
  return all;
}

void lead_with(FeedPosition& feed, std::vector<Fields> leftovers, bool recuts) {
  (recuts ? feed.leading : feed.undelivered) = std::move(leftovers);
}

// Every `targets`-th element of the list from `target` on: the part of that feed.
std::vector<Fields> dealt(std::vector<Fields> all, std::size_t target, std::size_t targets) {
  std::vector<Fields> own;
  for (std::size_t i = target; i < all.size(); i += targets) own.push_back(std::move(all[i]));
  return own;
}

std::vector<StreamPosition> dealt(const std::vector<StreamPosition>& all, std::size_t target,
                                  std::size_t targets) {
  std::vector<StreamPosition> own;
  for (std::size_t i = target; i < all.size(); i += targets) own.push_back(all[i]);
  if (!own.empty() || all.empty()) return own;
  // There are more feeds than streams, so some share one.
  own.push_back(all[target % all.size()]);
  return own;
}

}  // namespace

void JobPosition::write_head(ByteWriter& writer) const {
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(dealing));
  for (const bool flag : {is_own, votes, is_over}) writer.u8(flag ? 1 : 0);
  writer.zigzag(num_local_replicas);
  writer.zigzag(num_pipeline_replicas);
  writer.zigzag(steps_left.value_or(-1));
  writer.varint(steps);
  writer.u64(seed);
  writer.varint(pass);
  writer.text(spec);
}

Bytes JobPosition::encode_feeds(const std::vector<FeedPosition>& feeds) {
  ByteWriter writer;
  writer.varint(feeds.size());
  for (const FeedPosition& feed : feeds) feed.write(writer);
  return writer.take();
}

JobPosition JobPosition::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes, "position in a distributed dataset");
  if (reader.u8() != kVersion) reader.fail("version 3");
  JobPosition job;
  const std::uint8_t dealing = reader.u8();
  if (dealing > static_cast<std::uint8_t>(Dealing::by_function)) reader.fail("a way of dealing");
  job.dealing = static_cast<Dealing>(dealing);
  for (bool* flag : {&job.is_own, &job.votes, &job.is_over}) *flag = reader.u8() != 0;
  job.num_local_replicas = reader.zigzag();
  job.num_pipeline_replicas = reader.zigzag();
  if (const std::int64_t left = reader.zigzag(); left >= 0) job.steps_left = left;
  job.steps = reader.varint();
  job.seed = reader.u64();
  job.pass = reader.varint();
  job.spec = reader.text();
  for (std::size_t workers = reader.count(); workers > 0; --workers) {
    ByteReader of_worker(reader.blob(), "position of a worker");
    std::vector<FeedPosition>& feeds = job.workers.emplace_back();
    for (std::size_t left = of_worker.count(); left > 0; --left) {
      feeds.push_back(FeedPosition::read(of_worker));
    }
    of_worker.expect_end();
  }
  reader.expect_end();
  if (!job.is_sound()) reader.fail("a worker, each with equally many pipelines");
  return job;
}

bool JobPosition::is_sound() const {
  if (workers.empty() || num_local_replicas < 1 || num_pipeline_replicas < 1 ||
      num_pipeline_replicas > kNumberMax) {
    return false;
  }
  const std::size_t feeds = workers.front().size();
  const std::size_t feeds_max = dealing == Dealing::by_function
                                    ? static_cast<std::size_t>(num_local_replicas)
                                    : std::size_t{1};
  return feeds >= 1 && feeds <= feeds_max &&
         std::all_of(workers.begin(), workers.end(), [&](const auto& worker) {
           return worker.size() == feeds &&
                  std::all_of(worker.begin(), worker.end(), is_sound_feed);
         });
}

bool JobPosition::has_numbers_of(const Plan& plan) const {
  return static_cast<int>(workers.size()) == plan.host().num_workers() &&
         num_local_replicas == plan.host().num_local_replicas() &&
         workers.front().size() == plan.num_feeds();
}

namespace {

// All workers had the same stream; new parts of its batches follow the leftovers.
std::vector<FeedPosition> take_over_data(JobPosition job, std::size_t target, std::size_t targets) {
  FeedPosition feed;
  std::vector<Fields> leftovers;
  feed.streams = job.workers.front().front().streams;
  COHORT_CHECK(!feed.streams.empty(), ErrorCode::data_loss,
               "[input.restore] expected a pipeline in the position of each worker, got none");
  for (std::vector<FeedPosition>& feeds : job.workers) {
    FeedPosition& old = feeds.front();
    COHORT_CHECK(old.streams.size() == 1 && is_same(old.streams.front(), feed.streams.front()),
                 ErrorCode::failed_precondition,
                 "[input.restore] expected workers at one place of the dataset, got some ahead of "
                 "others after an error on one of them; restore on ",
                 job.workers.size(), " workers");
    std::vector<Fields> left = leftovers_of(old);
    std::move(left.begin(), left.end(), std::back_inserter(leftovers));
  }
  feed.undelivered = dealt(std::move(leftovers), target, targets);
  return {std::move(feed)};
}

}  // namespace

std::vector<FeedPosition> take_over(JobPosition job, const Plan& plan) {
  const std::size_t worker = static_cast<std::size_t>(plan.host().worker());
  const std::size_t workers = static_cast<std::size_t>(plan.host().num_workers());
  if (job.dealing == Dealing::by_data) return take_over_data(std::move(job), worker, workers);
  const bool recuts = plan.recuts(job.dealing);
  std::size_t targets = workers * plan.num_feeds();
  std::size_t first_target = worker * plan.num_feeds();
  if (job.dealing == Dealing::everything) {
    job.workers = {std::move(job.workers[worker % job.workers.size()])};
    targets = 1;
    first_target = 0;
  }
  std::vector<StreamPosition> streams;
  std::vector<Fields> leftovers;
  for (std::vector<FeedPosition>& feeds : job.workers) {
    for (FeedPosition& feed : feeds) {
      std::vector<Fields> left = leftovers_of(feed);
      std::move(left.begin(), left.end(), std::back_inserter(leftovers));
      std::move(feed.streams.begin(), feed.streams.end(), std::back_inserter(streams));
    }
  }
  std::vector<FeedPosition> own(plan.num_feeds());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t target = first_target + i;
    own[i].streams = dealt(streams, target, targets);
    if (targets > streams.size() && !own[i].streams.empty()) {
      const std::size_t stream = target % streams.size();
      const std::size_t sharers = (targets - stream + streams.size() - 1) / streams.size();
      own[i].streams.front().shares.push_back(
          {.num = static_cast<std::int64_t>(sharers),
           .index = static_cast<std::int64_t>(target / streams.size())});
    }
    lead_with(own[i], dealt(leftovers, target, targets), recuts);
  }
  return own;
}

}  // namespace cohort::input
