// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/strategy_workers.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "cohort/collective/links.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/call_site.h"
#include "cohort/core/error_bytes.h"
#include "cohort/core/fields.h"

namespace cohort::internal {
namespace {

// How long a process may take from the end of its group to its own end, on a loaded host, too.
constexpr std::chrono::seconds kEndingTime(20);

// Whether all members of a group throw an error of this code, and can make further calls.
bool is_of_all_members(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::unimplemented;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

// The lines in which two texts first differ.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  const std::vector<std::string_view> of_a = lines_of(a), of_b = lines_of(b);
  std::size_t i = 0;
  while (i < of_a.size() && i < of_b.size() && of_a[i] == of_b[i]) ++i;
  const auto line = [i](const std::vector<std::string_view>& lines) {
    return std::string(i < lines.size() ? lines[i] : std::string_view("no more"));
  };
  return {line(of_a), line(of_b)};
}

// ": worker:1 has made one run() less than worker:0"; empty if each has made as many.
std::string difference_of_runs(std::uint64_t first, std::uint64_t other,
                               const collective::Group& group, int rank) {
  if (first == other) return "";
  const std::uint64_t count = std::max(first, other) - std::min(first, other);
  return ": " + group.member_name(other < first ? rank : 0) + " has made " +
         (count == 1 ? "one" : std::to_string(count)) + " run() less than " +
         group.member_name(other < first ? 0 : rank);
}

// How long a call has waited, and what can be done after a wait in vain.
std::string text_of_wait(Duration wait, const WorkerRequest& request) {
  const bool is_own = request.timeout && *request.timeout > Duration::zero();
  const double seconds = std::chrono::duration<double>(wait).count();
  std::ostringstream text;
  text << "waiting " << seconds << " s in " << request.call << ", the limit of "
       << (is_own ? "CommunicationOptions::timeout" : "MultiWorkerMirroredOptions::timeout")
       << "; where a worker is slow by design, set a longer one on all; to go on with those that "
          "are left, call rebuild() on each";
  return text.str();
}

// A description of one worker's part in a call, for the others.
struct Part {
  std::string text;
  std::string site;  // "is in snapshot() at main.cpp:41"; empty: not known
  std::uint64_t num_runs = 0;
};
template <class Codec>
void fields(Codec& codec, Part& part) {
  codec(part.text, part.site, Fixed{part.num_runs});
}

// Throws unless all do the same.
void check_same(const std::vector<Part>& all, std::string_view call,
                const collective::Group& group) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].text == all[0].text) continue;
    const auto [first, other] = first_difference(all[0].text, all[i].text);
    const int rank = static_cast<int>(i);
    const std::string of_first = group.member_name(0), of_other = group.member_name(rank);
    std::string sites;
    if (!all[0].site.empty()) sites = of_first + " " + all[0].site;
    if (!all[i].site.empty()) sites += (sites.empty() ? "" : ", ") + of_other + " " + all[i].site;
    if (!sites.empty()) sites = "; " + sites;
    const bool has_module = call.find('.') != std::string_view::npos;
    throw_error(ErrorCode::invalid_argument, has_module ? "[" : "[strategy.", call,
                "] expected one call on all workers, got ", first, " on ", of_first, " and ", other,
                " on ", of_other, sites,
                difference_of_runs(all[0].num_runs, all[i].num_runs, group, rank),
                "; make the same calls in the same order on each");
  }
}

}  // namespace

StrategyWorkers::StrategyWorkers(std::shared_ptr<collective::Group> group, Duration timeout,
                                 int local_replicas, std::shared_ptr<collective::WorkerCalls> calls)
    : timeout_(timeout), local_replicas_(local_replicas), calls_(std::move(calls)) {
  if (group != nullptr) use(std::move(group));
  group_number_ = 0;
}

std::shared_ptr<collective::Group> StrategyWorkers::group() const {
  const Lock lock(mutex_);
  return group_;
}

std::string StrategyWorkers::name_of(int worker) const {
  const std::shared_ptr<collective::Group> current = group();
  return current ? current->member_name(worker) : "worker:" + std::to_string(worker);
}

bool StrategyWorkers::is_given_up() const {
  const std::shared_ptr<WorkerGroups> groups = groups_.lock();
  if (auto* const ended = dynamic_cast<collective::EndedGroup*>(group().get()))
    ended->look_for_end();
  return groups != nullptr && groups->is_given_up();
}

bool StrategyWorkers::have_others_ended() const {
  const std::shared_ptr<WorkerGroups> groups = groups_.lock();
  return groups == nullptr ||
         groups->have_others_ended(Deadline::after(std::min<Duration>(timeout_, kEndingTime)));
}

std::uint64_t StrategyWorkers::membership_number() const {
  const std::shared_ptr<WorkerGroups> groups = groups_.lock();
  return groups == nullptr ? 0 : groups->last_number();
}

void StrategyWorkers::use(std::shared_ptr<collective::Group> group) {
  const collective::WorkerCalls::Running running(*calls_, "rebuild");
  {
    const Lock lock(mutex_);
    count_ = group->size();
    own_ = group->rank();
    group_ = std::move(group);
  }
  is_introduced_ = false;
  num_runs_ = 0;
  calls_->begin_group();
  has_failed_together_ = false;
  ++group_number_;
  begin_epoch();
}

void StrategyWorkers::on_new_epoch(std::function<void()> callback) {
  const Lock lock(callback_mutex_);
  on_new_epoch_ = std::move(callback);
}

void StrategyWorkers::begin_epoch() {
  ++epoch_;
  const Lock lock(callback_mutex_);
  if (on_new_epoch_) on_new_epoch_();
}

// Other workers cannot know of some failures, such as a damaged frame; the end of the run tells
// them.
void StrategyWorkers::note_failure(ErrorCode code) {
  if (code == ErrorCode::unavailable || code == ErrorCode::deadline_exceeded ||
      code == ErrorCode::aborted)
    has_failed_together_ = true;
  begin_epoch();
}

// Strategies count replicas as if all workers had as many.
void StrategyWorkers::introduce(collective::Group& group, Deadline deadline) {
  if (is_introduced_) return;
  ByteWriter mine;
  mine.zigzag(local_replicas_);
  mine.u8(shards_ ? 1 : 0);
  const std::vector<Bytes> all = group.exchange(mine.take(), "the number of replicas", deadline);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ByteReader reader(all[i], "the number of replicas");
    const std::int64_t other = reader.zigzag();
    ByteReader of_first(all[0], "the number of replicas");
    const std::int64_t first = of_first.zigzag();
    COHORT_CHECK(other == first, ErrorCode::failed_precondition,
                 "[strategy.multi_worker_mirrored] expected as many replicas on each worker, got ",
                 first, " on ", group.member_name(0), " and ", other, " on ",
                 group.member_name(static_cast<int>(i)), "; give all workers as many devices");
    const bool shards = reader.u8() != 0, first_shards = of_first.u8() != 0;
    COHORT_CHECK(shards == first_shards, ErrorCode::failed_precondition,
                 "[strategy.multi_worker_mirrored] expected the same shard_optimizer_state on each "
                 "worker, got ",
                 first_shards ? "true on " : "false on ", group.member_name(0),
                 shards ? " and true on " : " and false on ",
                 group.member_name(static_cast<int>(i)), "; give all workers the same options");
  }
  is_introduced_ = true;
}

void StrategyWorkers::together(const WorkerRequest& request, const std::optional<Error>& failure,
                               const std::function<void(collective::Group&, Deadline)>& call) {
  const collective::WorkerCalls::Running running(*calls_, request.call);
  const std::shared_ptr<collective::Group> group = this->group();
  const Duration wait =
      request.timeout && *request.timeout > Duration::zero() ? *request.timeout : timeout_;
  const Deadline deadline = Deadline::after(wait);
  has_failed_together_ = true;  // until it has succeeded
  std::optional<Error> found;
  try {
    introduce(*group, deadline);
    call(*group, deadline);
  } catch (const Error& error) {
    if (!is_of_all_members(error.code())) {
      begin_epoch();
      if (error.code() == ErrorCode::deadline_exceeded)
        throw Error(error).during(text_of_wait(wait, request));
      throw;
    }
    found = error;
  }
  if (found) explain(*group, request, failure, *found, Deadline::after(wait));
  if (request.combines) ++num_combined_;
  has_failed_together_ = false;
}

void StrategyWorkers::explain(collective::Group& group, const WorkerRequest& request,
                              const std::optional<Error>& failure, const Error& found,
                              Deadline deadline) {
  begin_epoch();
  FieldWriter mine;
  write_optional_error(mine.bytes(), failure);
  mine(Part{std::string(request.text.empty() ? request.call : request.text), CallSite::text(),
            num_runs_});
  const std::vector<Bytes> all =
      group.exchange(mine.take_bytes(), "why a call has failed", deadline);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    FieldReader reader(all[i], "why a call has failed");
    if (std::optional<Error> error = read_optional_error(reader.bytes())) {
      throw std::move(*error)
          .at(group.member_name(static_cast<int>(i)))
          .during("waiting for " + group.member_name(static_cast<int>(i)) + " in " +
                  std::string(request.call));
    }
    reader(parts.emplace_back());
  }
  check_same(parts, request.call, group);
  throw found;
}

std::vector<Bytes> StrategyWorkers::exchange(const WorkerRequest& request,
                                             const std::function<Message()>& make) {
  FieldWriter mine;
  std::optional<Error> failure;
  std::string text(request.text);
  try {
    Message message = make();
    text += message.text;
    write_optional_error(mine.bytes(), std::nullopt);
    mine(Part{text, CallSite::text(), num_runs_}, message.bytes);
  } catch (...) {
    failure = current_error();
    write_optional_error(mine.bytes(), failure);
  }
  std::vector<Bytes> all;
  std::vector<Part> parts;
  const std::shared_ptr<collective::Group> group = this->group();
  together({request.call, text, request.timeout, request.combines}, failure,
           [&](collective::Group& members, Deadline deadline) {
             all = members.exchange(mine.take_bytes(), request.call, deadline);
           });
  // From here on, all workers do the same with what all have sent.
  has_failed_together_ = true;
  try {
    for (std::size_t i = 0; i < all.size(); ++i) {
      FieldReader reader(all[i], request.call);
      if (std::optional<Error> error = read_optional_error(reader.bytes()))
        throw std::move(*error).at(group->member_name(static_cast<int>(i)));
      Bytes made;
      reader(parts.emplace_back(), made);
      all[i] = std::move(made);
    }
    check_same(parts, request.call, *group);
  } catch (...) {
    begin_epoch();
    throw;
  }
  has_failed_together_ = false;
  return all;
}

void StrategyWorkers::all_reduce(const WorkerRequest& request,
                                 std::span<const at::Tensor> tensors) {
  together(request, std::nullopt, [&](collective::Group& group, Deadline deadline) {
    group.all_reduce(tensors, ReduceOp::sum, deadline);
  });
}

void StrategyWorkers::broadcast(const WorkerRequest& request, std::span<const at::Tensor> tensors) {
  together(request, std::nullopt, [&](collective::Group& group, Deadline deadline) {
    group.broadcast(tensors, /*root=*/0, deadline);
  });
}

at::Tensor StrategyWorkers::reduce_scatter(const WorkerRequest& request, const at::Tensor& tensor) {
  at::Tensor own;
  together(request, std::nullopt, [&](collective::Group& group, Deadline deadline) {
    own = group.reduce_scatter(tensor, ReduceOp::sum, deadline);
  });
  return own;
}

at::Tensor StrategyWorkers::all_gather(const WorkerRequest& request, const at::Tensor& tensor,
                                       std::int64_t axis) {
  at::Tensor gathered;
  together(request, std::nullopt, [&](collective::Group& group, Deadline deadline) {
    gathered = group.all_gather(tensor, axis, deadline);
  });
  return gathered;
}

bool StrategyWorkers::agree_to_stop(bool wants) {
  stop_.want(wants);
  if (const std::optional<bool> known = stop_.take(epoch())) return *known;
  const std::vector<Bytes> all = exchange(
      {.call = "train.stop_signals", .combines = false},
      [wants] { return Message{.text = "StopSignals::agreed()", .bytes = {std::byte{wants}}}; });
  const bool any = std::ranges::any_of(
      all, [](const Bytes& own) { return own.size() == 1 && own[0] != std::byte{0}; });
  note_stop(any);
  return stop_.take(epoch()).value_or(any);
}

// A barrier is no call of any other worker, unless that one has failed too: so the others find out
// that their call is another one, and ask why.
void StrategyWorkers::tell_failure() {
  if (!are_several() || has_failed_together_) return;
  const Error failure = current_error();
  try {
    together({.call = "run", .text = "a run that failed", .combines = false}, failure,
             [](collective::Group& group, Deadline deadline) { group.barrier(deadline); });
  } catch (...) {
    // The caller throws its own error.
  }
  has_failed_together_ = true;
}

}  // namespace cohort::internal
