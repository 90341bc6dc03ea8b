// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/session/session.h"

#include <functional>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/log.h"

namespace cohort::server {
namespace {

// How long to wait for a closure, which ends when its connections close.
constexpr auto kLastMoment = std::chrono::milliseconds(500);
// How long to wait for pipelines that were stopped. Freeing the gigabytes of a shuffle's buffer
// takes the system a second.
constexpr auto kLastMomentOfPipelines = std::chrono::seconds(2);
// How long to try a parameter server at which nobody listens: a short time, as all were there when
// the coordinator started.
constexpr auto kConnectTimeout = std::chrono::seconds(1);

// In an answer about health.
constexpr std::size_t kVariablesMax = 100;

VariableHealth health_of(const ParameterStore::Busy& variable) {
  const parameter_server::VariableStatistics& its = *variable.statistics;
  VariableHealth health{.name = variable.name,
                        .pulls = its.pulls.requests,
                        .pushes = its.pushes.requests,
                        .pulled_bytes = its.pulls.bytes,
                        .pushed_bytes = its.pushes.bytes,
                        .pulled_rows = its.pulls.rows,
                        .pushed_rows = its.pushes.rows};
  for (const parameter_server::RowCount& row : its.hot.top())
    health.hot_rows.push_back({row.row, row.times});
  return health;
}

rpc::Frame peeked(WorkerIterator& iterator, std::size_t count) {
  rpc::PeekReply reply;
  for (Fields& fields : iterator.peek(count)) {
    reply.fields = static_cast<std::uint32_t>(fields.size());
    reply.tensors.insert(reply.tensors.end(), fields.begin(), fields.end());
  }
  return rpc::to_frame(std::move(reply));
}

// A worker keeps no connection for control calls to a server: they come from the coordinator.
parameter_server::ServerLinks::Options links_of(const SessionOptions& options) {
  return {.self = options.self.task,
          .connect =
              [options](const rpc::Member& server, Duration patience,
                        const std::function<bool()>& should_stop) {
                rpc::Connection made =
                    rpc::connect_task({.address = server.address,
                                       .task = server.task,
                                       .caller = options.self,
                                       .coordinator_incarnation = options.coordinator_incarnation,
                                       .payload_checksums = options.payload_checksums,
                                       .deadline = Deadline::after(kConnectTimeout),
                                       .silence_deadline = Deadline::after(patience),
                                       .should_stop = should_stop});
                made.control.reset();
                return made;
              },
          .data_timeout = options.data_timeout};
}

// For a thread that has no caller to throw to.
void respond_or_report(const std::weak_ptr<rpc::Channel>& weak, std::uint64_t id,
                       const std::function<rpc::Frame()>& make_reply) noexcept {
  const auto send = [&](rpc::Frame frame) {
    if (const std::shared_ptr<rpc::Channel> channel = weak.lock()) channel->send(std::move(frame));
  };
  try {
    try {
      send(rpc::response_to(id, make_reply()));
    } catch (...) {
      send(rpc::error_frame(id, current_error()));
    }
  } catch (...) {
    log_debug("an answer was not sent: ", current_error().what());
  }
}

}  // namespace

Session::Session(SessionOptions options)
    : options_(std::move(options)),
      store_(options_.hot_rows),
      tables_(std::make_shared<ClosureTables>(links_of(options_))),
      runner_(ClosureRunner::start({.task = options_.self.task,
                                    .worker_index = TaskId::parse(options_.self.task).index,
                                    .coordinator_incarnation = options_.coordinator_incarnation,
                                    .errors = options_.errors},
                                   tables_)),
      cut_writer_(store_, options_.data_dirs, options_.self.task) {}

Session::~Session() { end(); }

bool Session::end() noexcept { return end_within(kLastMomentOfPipelines); }

bool Session::end_within(Duration time_of_pipelines) noexcept {
  tables_->servers->close();    // wakes threads that wait for a parameter server
  tables_->iterators.cancel();  // wakes threads that wait for an element or a program
  const Deadline deadline = Deadline::after(kLastMoment);
  const bool has_ended = runner_->end(deadline);
  const Deadline last = has_ended ? Deadline::after(time_of_pipelines) : deadline;
  return tables_->iterators.end(last) && has_ended;
}

void Session::replace() noexcept {
  is_replaced_ = true;
  end_within(kLastMoment);  // the next coordinator waits meanwhile
  drop_state();
}

// Requests that still come find nothing. The counters stay.
void Session::drop_state() noexcept {
  store_.clear();
  directory_.clear();
  tables_->functions.clear();
}

void Session::place_variables(const rpc::Placement& placement) {
  tables_->placement.take(placement);
  store_.expect_placement(placement.version);
}

void Session::create_iterator(const rpc::IteratorSpec& iterator) {
  const std::uint64_t seed = iterator.seed_on(options_.self.task);
  tables_->iterators.create(
      iterator, {.seed = seed, .iteration = iterator.epoch, .data_dirs = options_.data_dirs},
      [asker = asker_, id = iterator.id](const std::string& function, const Fields& element) {
        ask(*asker, id, function, element);
      });
}

void Session::greeted(const std::string& task, const std::shared_ptr<rpc::Channel>& channel,
                      const std::shared_ptr<CompletionSender>& sender) {
  if (task != options_.coordinator) return;
  // A coordinator that has reconnected creates its iterators again, always after this greeting.
  IteratorTable::Iterators old;
  {
    const Lock lock(asker_->mutex);
    old = tables_->iterators.take_all();
    asker_->channel = channel;
    asker_->sender = sender;
  }
  IteratorTable::let_go(std::move(old));
}

// A coordinator that only lost its connection comes back and needs its variables, so an older
// channel, or one that ends without a farewell, changes nothing.
void Session::take_farewell(const std::shared_ptr<CompletionSender>& sender) {
  if (options_.is_shared) return;
  const Lock lock(asker_->mutex);  // so that no newer channel can be greeted meanwhile
  if (asker_->sender.lock() == sender) drop_state();
}

// Requests for programs over this channel get no answer any more, so draws that wait for one must
// end. When the coordinator comes back, it creates its iterators again; iterators that it has
// dropped in the meantime would otherwise stay here with their buffers.
void Session::hang_up(const std::shared_ptr<CompletionSender>& sender) {
  runner_->drop(sender);
  IteratorTable::Iterators old;
  {
    const Lock lock(asker_->mutex);  // so that no newer channel can be greeted meanwhile
    if (asker_->sender.lock() == sender) old = tables_->iterators.take_all();
  }
  IteratorTable::let_go(std::move(old));
}

// Does nothing if the channel has closed: the coordinator will come back with a new channel and new
// iterators.
void Session::ask(Asker& asker, std::uint64_t iterator, const std::string& function,
                  const Fields& element) {
  std::shared_ptr<rpc::Channel> channel;
  {
    const Lock lock(asker.mutex);
    channel = asker.channel.lock();
  }
  if (channel == nullptr) return;
  try {
    channel->send(rpc::to_frame(
        rpc::ProgramRequest{.resource = iterator, .function = function, .element = element}));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    log_debug("a request for a program was not sent: ", error.what());
  }
}

void Session::handle(rpc::Frame frame, const std::shared_ptr<rpc::Channel>& channel,
                     const std::shared_ptr<CompletionSender>& sender) {
  if (is_replaced_) throw rpc::replaced_error(options_.self.task);
  const std::uint64_t id = frame.id;
  const auto respond = [&](rpc::Frame reply) {
    channel->send(rpc::response_to(id, std::move(reply)));
  };
  switch (static_cast<rpc::MessageType>(frame.type)) {
    case rpc::MessageType::pull:
      return respond(
          rpc::to_frame(store_.pull(rpc::message_of<rpc::PullRequest>(std::move(frame)))));
    case rpc::MessageType::push:
      return respond(
          rpc::to_frame(store_.push(rpc::message_of<rpc::PushRequest>(std::move(frame)))));
    case rpc::MessageType::export_state:
      return respond(rpc::to_frame(
          store_.export_state(rpc::message_of<rpc::ExportRequest>(std::move(frame)))));
    case rpc::MessageType::cut:
      store_.take_cut(rpc::message_of<rpc::CutRequest>(std::move(frame)));
      return respond(rpc::to_frame(rpc::DoneReply()));
    case rpc::MessageType::export_cut:
      return respond(
          rpc::to_frame(store_.export_cut(rpc::message_of<rpc::CutExport>(std::move(frame)))));
    case rpc::MessageType::write_cut:
      return respond(cut_writer_.handle(rpc::CutWrite::of(frame)).to_frame());
    case rpc::MessageType::import_state:
      store_.import_state(rpc::message_of<rpc::ImportRequest>(std::move(frame)));
      return respond(rpc::to_frame(rpc::DoneReply()));
    case rpc::MessageType::snapshot:
      store_.take_snapshot(rpc::message_of<rpc::SnapshotRequest>(std::move(frame)));
      return respond(rpc::to_frame(rpc::DoneReply()));
    case rpc::MessageType::erase:
      store_.erase(rpc::message_of<rpc::EraseRequest>(std::move(frame)));
      return respond(rpc::to_frame(rpc::DoneReply()));
    case rpc::MessageType::announce:
      directory_.add(rpc::message_of<rpc::AnnounceRequest>(std::move(frame)));
      return respond(rpc::to_frame(rpc::DoneReply()));
    case rpc::MessageType::find:
      return respond(
          rpc::to_frame(directory_.find(rpc::message_of<rpc::FindRequest>(std::move(frame)))));
    case rpc::MessageType::peek:
      return peek(rpc::message_of<rpc::PeekRequest>(std::move(frame)), id, channel);
    case rpc::MessageType::program_reply:
      return tables_->iterators.take(rpc::message_of<rpc::ProgramReply>(std::move(frame)));
    case rpc::MessageType::run: {
      rpc::RunBatch batch = rpc::message_of<rpc::RunBatch>(std::move(frame));
      for (const rpc::ClosureCall& call : batch.closures)
        rpc::check_watermark(batch.low_watermark, call.closure_id);
      return runner_->enqueue(std::move(batch), sender);
    }
    case rpc::MessageType::ping:
      return respond(rpc::ping_frame());
    case rpc::MessageType::cancel:
      return runner_->cancel(rpc::message_of<rpc::CancelRequest>(std::move(frame)).closures);
    default:
      internal::throw_error(ErrorCode::unimplemented, "[server.handle] unknown message type ",
                            frame.type);
  }
}

// Runs on another thread, because the pipeline may take any time and the channel must go on.
// Meanwhile a closure that draws waits, and gets the elements in the same order as without a peek.
void Session::peek(const rpc::PeekRequest& request, std::uint64_t id,
                   const std::shared_ptr<rpc::Channel>& channel) {
  tables_->iterators.use(request.resource, [weak = std::weak_ptr(channel), id,
                                            count = request.count](WorkerIterator& iterator) {
    respond_or_report(weak, id, [&] { return peeked(iterator, count); });
  });
}

TaskHealth Session::health() const {
  const ParameterStore::Counters& counters = store_.counters();
  const ClosureRunner::Counts closures = runner_->counts();
  TaskHealth health;
  health.closures_run = closures.ended_well;
  health.pushes_applied = counters.pushes_applied;
  health.pushes_dropped = counters.pushes_dropped;
  health.pulled_bytes = counters.pulled_bytes;
  health.pushed_bytes = counters.pushed_bytes;
  health.closures_failed = closures.failed;
  health.closures_queued = closures.queued;
  health.closures_running = closures.running;
  health.connections_lost = tables_->servers->losses();
  health.since_last_end = closures.since_last_end;
  health.variables = store_.num_variables();
  health.variable_bytes = store_.value_bytes();
  health.rows_per_second = counters.rows.per_second(Clock::system().now());
  for (const auto& variable : store_.busiest(kVariablesMax))
    health.by_variable.push_back(health_of(variable));
  return health;
}

}  // namespace cohort::server
