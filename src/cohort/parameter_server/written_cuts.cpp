// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/written_cuts.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/parameter_server/lost_server.h"
#include "cohort/rpc/requester.h"
#include "cohort/rpc/task_errors.h"

namespace cohort::parameter_server {
namespace {

// Between two questions to a server; a small save ends soon, a large one takes minutes.
constexpr std::chrono::milliseconds kPauseMin{2}, kPauseMax{200};

void wait_before_asking(Duration time) {
  Mutex mutex;
  Condition nothing;
  const Lock lock(mutex);
  nothing.wait(mutex, Deadline::after(time), [] { return false; });
}

// A server that writes.
struct ShareOfServer {
  rpc::MemberId server = 0;
  rpc::CutWrite request = {};
  bool is_done = false;
  std::uint64_t progress = 0;
  Deadline silence = {};
  rpc::CutWritten answer = {};  // the last one
};

std::string file_prefix_of(std::string server) {
  std::ranges::replace(server, ':', '-');
  return server + "-";
}

std::int64_t rows_of_slice(const rpc::Slice& slice, const TensorSpec& spec, std::int64_t all) {
  if (spec.sizes->empty()) return 1;
  return slice.is_whole() ? all : slice.rows;
}

// The rows of a variable are one after the other for each server, since `places` has them so.
std::vector<ShareOfServer> writers_of(const ServerLinks& links, const WrittenVariables& variables,
                                      const rpc::CutWrite& begin) {
  std::vector<ShareOfServer> writers;
  for (std::size_t i = 0; i < variables.places.num_variables(); ++i) {
    const WrittenVariables::Rows& whole = variables.of[i];
    const bool is_whole = variables.places.of(i).size() == 1;
    for (const rpc::Slice& slice : variables.places.of(i)) {
      auto writer = std::ranges::find(writers, slice.server, &ShareOfServer::server);
      if (writer == writers.end()) {
        writer = writers.insert(writers.end(), {.server = slice.server, .request = begin});
        writer->request.placement = variables.places.version();
        writer->request.prefix = file_prefix_of(links.name_of(slice.server));
      }
      const bool is_table = slice.is_by_key();
      writer->request.rows.push_back(
          {.stored = slice.stored(),
           .name = whole.name,
           .spec = whole.spec,
           .first_row = whole.first_row + (is_table || is_whole ? 0 : slice.first_row),
           .count = is_table ? 0 : rows_of_slice(slice, whole.spec, whole.count),
           .is_table = is_table});
    }
  }
  return writers;
}

rpc::CutWritten ask_for_share(ServerLinks& links, const ShareOfServer& writer,
                              rpc::CutWrite request) {
  const std::string name = links.name_of(writer.server);
  try {
    const std::shared_ptr<rpc::Requester> link = links.get(writer.server).data;
    return rpc::CutWritten::of(link->call(request.to_frame(), Deadline::after(links.data_timeout()),
                                          "writing a checkpoint"));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::deadline_exceeded) links.note_silence(writer.server);
    Error named = error.origin().empty() ? Error(error).at(name) : error;
    throw std::move(named).during("writing the share of " + name + " of a checkpoint");
  }
}

void note_answer(ServerLinks& links, ShareOfServer& writer, const rpc::CutWritten& answer) {
  writer.is_done = answer.is_done;
  if (answer.progress != writer.progress || writer.silence.time() == Deadline().time())
    writer.silence = Deadline::after(links.data_timeout());
  writer.progress = answer.progress;
  COHORT_CHECK(writer.is_done || !writer.silence.has_expired(), ErrorCode::deadline_exceeded,
               "[checkpoint.write] expected ", links.name_of(writer.server),
               " to get on with its share of a checkpoint within ",
               std::chrono::duration<double>(links.data_timeout()).count(),
               " s (ClusterOptions::data_timeout), got no more bytes on its disk: look whether its "
               "file system answers, or give a slow one a longer timeout");
}

// Begins all, and asks until all are done.
void await_shares(ServerLinks& links, std::vector<ShareOfServer>& writers, std::uint64_t cut,
                  std::size_t& asked) {
  for (asked = 0; asked < writers.size(); ++asked)
    note_answer(links, writers[asked],
                ask_for_share(links, writers[asked], writers[asked].request));
  Duration time = kPauseMin;
  for (bool are_done = false; !are_done;) {
    wait_before_asking(time);
    time = std::min<Duration>(2 * time, kPauseMax);
    are_done = true;
    for (asked = 0; asked < writers.size(); ++asked) {
      ShareOfServer& writer = writers[asked];
      if (writer.is_done) continue;
      writer.answer = ask_for_share(links, writer, {.cut = cut});
      note_answer(links, writer, writer.answer);
      are_done = are_done && writer.is_done;
    }
  }
}

// So that nothing is written any more when the folder is removed.
void end_others(ServerLinks& links, const std::vector<ShareOfServer>& writers, std::uint64_t cut,
                std::size_t failed) noexcept {
  for (std::size_t i = 0; i < writers.size(); ++i) {
    if (i == failed || writers[i].is_done) continue;
    try {
      ask_for_share(links, writers[i], {.cut = cut, .is_end = true});
    } catch (const Error& error) {
      log_debug("a server was not told that a checkpoint has failed: ", error.what());
    }
  }
}

}  // namespace

void write_cut(ServerLinks& links, const WrittenVariables& variables, const rpc::CutWrite& begin,
               const std::function<void(const std::string&, rpc::CutWritten)>& take) {
  std::vector<ShareOfServer> writers = writers_of(links, variables, begin);
  std::size_t asked = 0;  // the one that an error is about
  try {
    with_remedy([&] { await_shares(links, writers, begin.cut, asked); });
  } catch (...) {
    end_others(links, writers, begin.cut, asked);
    throw;
  }
  // In the order of their rows, whoever was done first.
  for (ShareOfServer& writer : writers)
    take(links.name_of(writer.server), std::move(writer.answer));
}

}  // namespace cohort::parameter_server
