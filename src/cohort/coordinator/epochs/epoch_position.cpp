// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/epochs/epoch_position.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "cohort/coordinator/epochs/epoch_run.h"
#include "cohort/core/error.h"
#include "cohort/core/fields.h"

namespace cohort::coordinator {
namespace {

constexpr std::uint8_t kVersion = 1;

struct Versioned {
  std::uint8_t version = kVersion;
  EpochPosition position = {};
};

template <class Codec>
void fields(Codec& codec, Versioned& all) {
  codec(all.version);
  COHORT_CHECK(all.version == kVersion, ErrorCode::unimplemented,
               "[coordinator.restore] expected a position in a per-worker dataset of version ",
               int{kVersion}, ", got version ", int{all.version},
               "; restore with the version of Cohort that has saved it");
  Pass& pass = all.position.pass;
  codec(pass.number, Fixed{pass.seed}, pass.steps, pass.files, all.position.spec,
        all.position.cardinalities);
}

// The epochs over the dataset that have not ended. They are destroyed without the lock.
std::vector<std::shared_ptr<EpochRun>> running(RuntimeContext& context, const Passes& passes) {
  std::vector<std::shared_ptr<EpochRun>> runs = passes.runs();
  std::vector<std::shared_ptr<EpochRun>> ended;
  const RuntimeLock lock(context);
  const auto is_over = [](const std::shared_ptr<EpochRun>& run) { return run->is_over; };
  const auto first = std::stable_partition(runs.begin(), runs.end(), std::not_fn(is_over));
  ended.assign(std::move_iterator(first), std::move_iterator(runs.end()));
  runs.erase(first, runs.end());
  return runs;
}

constexpr std::string_view kOrderRemedy =
    "; set deterministic to true, or leave the dataset out of the checkpoint";

void check_has_order(std::string_view call, const WorkerDatasets& datasets) {
  COHORT_CHECK(datasets.changing_order().empty(), ErrorCode::failed_precondition, "[coordinator.",
               call,
               "] expected a dataset whose elements come in the same order again, got one "
               "that may yield them in another one (",
               datasets.changing_order(), ")", kOrderRemedy);
}

}  // namespace

Bytes encode(const EpochPosition& position) {
  return encode_fields(Versioned{.position = position});
}

EpochPosition decode_epoch_position(std::span<const std::byte> bytes) {
  return decode_fields<Versioned>(bytes, "a position in a per-worker dataset").position;
}

EpochPosition position_in(RuntimeContext& context, const WorkerDatasets& datasets) {
  EpochPosition position{.pass = datasets.passes().next(),
                         .spec = datasets.spec().to_string(),
                         .cardinalities = datasets.cardinalities()};
  const std::vector<std::shared_ptr<EpochRun>> runs = running(context, datasets.passes());
  if (runs.empty()) return position;
  COHORT_CHECK(runs.size() == 1, ErrorCode::failed_precondition,
               "[coordinator.save] expected one epoch at a time over a dataset whose position is "
               "saved, got ",
               runs.size(), "; end the others before, or give each a dataset");
  check_has_order("save", datasets);
  const EpochRun& run = *runs.front();
  const RuntimeLock lock(context);
  if (run.error) {
    throw Error(*run.error)
        .during("saving the position in an epoch that has failed; go on from a checkpoint before");
  }
  COHORT_CHECK(!run.progress.has_open(), ErrorCode::failed_precondition,
               "[coordinator.save] expected an epoch whose steps have ended, got one that waits "
               "since another closure has failed; call join(), which throws its error");
  position.pass = {.number = run.pass, .seed = run.seed, .steps = run.progress.steps()};
  for (std::uint32_t worker = 0; worker < run.progress.num_workers(); ++worker) {
    COHORT_ASSERT(run.progress.is_without_gap(worker));
    position.pass.files.push_back(run.files->of(worker));
  }
  return position;
}

void set_position(RuntimeContext& context, const WorkerDatasets& datasets,
                  const EpochPosition& position) {
  const std::string spec = datasets.spec().to_string();
  COHORT_CHECK(position.spec == spec, ErrorCode::invalid_argument,
               "[coordinator.restore] expected a position in a dataset of elements ", spec,
               ", got one in a dataset of ", position.spec,
               "; restore it into the dataset that was saved");
  if (position.pass.was_begun()) {
    const std::size_t workers = context.connection.num_workers();
    COHORT_CHECK(position.pass.steps.size() == workers, ErrorCode::invalid_argument,
                 "[coordinator.restore] expected a position of ", workers,
                 " workers, got one in the middle of a pass of ", position.pass.steps.size(),
                 " workers, each of which has used a part of its elements; start so many workers, "
                 "or restore a checkpoint that was saved between two passes");
    COHORT_CHECK(position.cardinalities == datasets.cardinalities(), ErrorCode::invalid_argument,
                 "[coordinator.restore] expected a position in the middle of a pass over the same "
                 "number of elements on each worker, got another dataset or other batches; restore "
                 "it into the dataset that was saved");
    check_has_order("restore", datasets);
    COHORT_CHECK(!context.options.run_eagerly, ErrorCode::failed_precondition,
                 "[coordinator.restore] expected a position between two passes, since with "
                 "run_eagerly an epoch begins with its first element, got one in the middle of a "
                 "pass; leave the dataset out of the checkpoint, or run without run_eagerly");
  }
  COHORT_CHECK(running(context, datasets.passes()).empty(), ErrorCode::failed_precondition,
               "[coordinator.restore] expected no epoch that runs over the dataset, got one; "
               "restore between two epochs");
  datasets.passes().set_next(position.pass);
}

}  // namespace cohort::coordinator
