// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/writing/cut_writer.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "cohort/checkpoint_files/saved_records.h"
#include "cohort/checkpoint_files/share_writer.h"
#include "cohort/core/error.h"
#include "cohort/core/start_thread.h"
#include "cohort/data/allowed_path.h"
#include "cohort/variable/state_walk.h"

namespace cohort::server {
namespace {

// How many rows have about the bytes of a chunk. Throws unless the size of a row is known.
std::int64_t rows_of_chunk(TensorSpec spec) {
  const std::string given = spec.to_string();
  if (spec.sizes && !spec.sizes->empty()) spec.sizes->front() = 1;
  COHORT_CHECK(spec.is_static(), ErrorCode::invalid_argument,
               "[server.write_cut] expected rows of a known size, got ", given);
  if (spec.sizes->empty()) return 1;
  const auto row_bytes = std::max<std::int64_t>(1, spec.byte_count());
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(StateWalk().chunk_bytes) / row_bytes);
}

// They become parts of names of files of the folder, and a peer could name others by them.
void check_part_of_name(const char* field, const std::string& text) {
  COHORT_CHECK(text != ".." && text.find_first_of(std::string_view("/\0", 2)) == std::string::npos,
               ErrorCode::permission_denied, "[server.write_cut] expected a ", field,
               " that is part of a file's name, got '", text, "'");
}

void check(const rpc::CutWrite& request) {
  check_part_of_name("proof_name", request.proof_name);
  check_part_of_name("prefix", request.prefix);
  for (const rpc::CutWrite::Rows& rows : request.rows) rows_of_chunk(rows.spec);
}

}  // namespace

class CutWriter::Writing {
 public:
  // Checks the folder.
  Writing(ParameterStore& store, rpc::CutWrite request, const std::string& self)
      : store_(store),
        request_(std::move(request)),
        files_({request_.folder, request_.proof_name, request_.proof_text}, self, request_.prefix,
               request_.header_room),
        records_(no_values_),
        thread_(start_thread_without_signals("to write a checkpoint", [this] { run(); })) {}
  ~Writing() {
    is_cancelled_ = true;
    thread_.join();
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  std::uint64_t cut() const { return request_.cut; }
  rpc::CutWritten tell() {
    const Lock lock(mutex_);
    if (error_) throw Error(*error_);
    return {.progress = written_.progress,
            .is_done = written_.is_done,
            .share = written_.share,
            .number_names = written_.number_names,
            .numbers = written_.numbers};
  }

 private:
  void run() {
    try {
      write();
    } catch (...) {
      const Error error = current_error();
      const Lock lock(mutex_);
      error_ = error;
    }
  }

  void write() {
    records_.write_to(files_);
    for (std::size_t i = 0; i < request_.rows.size(); ++i) {
      const rpc::CutWrite::Rows& rows = request_.rows[i];
      files_.set_rows(rows_in_all(rows.name));
      if (rows.is_table) {
        write_table(rows);
      } else {
        write_variable(rows);
      }
    }
    rpc::CutWritten written{.is_done = true};
    for (auto& [name, number] : records_.take_numbers()) {
      written.number_names.push_back(name);
      written.numbers.push_back(number);
    }
    written.share = files_.finish(records_.take_entries());
    const Lock lock(mutex_);
    written.progress = written_.progress + 1;
    written_ = std::move(written);
  }
  // This server may have several parts of one variable.
  std::int64_t rows_in_all(const std::string& name) const {
    std::int64_t count = 0;
    for (const rpc::CutWrite::Rows& rows : request_.rows)
      if (rows.name == name) count += rows.count;
    return count;
  }
  rpc::StateOfRange export_range(const rpc::StateRange& range) {
    COHORT_CHECK(!is_cancelled_, ErrorCode::cancelled,
                 "[server.write_cut] expected a checkpoint that somebody waits for, got its end");
    rpc::CutExport cut{.cut = request_.cut,
                       .request = {.placement = request_.placement, .ranges = {range}}};
    return std::move(store_.export_cut(cut).states.at(0));
  }
  void write_record(VariableRecord record) {
    records_.write(record);
    const Lock lock(mutex_);
    written_.progress = files_.bytes() + ++chunks_;
  }

  void write_variable(const rpc::CutWrite::Rows& rows) {
    const std::int64_t chunk = rows_of_chunk(rows.spec);
    std::int64_t first = 0;
    do {  // once also without rows
      rpc::StateRange range{.variable = rows.stored};
      if (rows.count > chunk) {
        range.first_row = first;
        range.rows = std::min(chunk, rows.count - first);
      }
      rpc::StateOfRange state = export_range(range);
      write_record({.name = rows.name,
                    .spec = rows.spec,
                    .first_row = rows.first_row + first,
                    .values = {{std::move(state.value), std::move(state.slots)}}});
      first += range.is_whole() ? rows.count : range.rows;
    } while (first < rows.count);
  }
  void write_table(const rpc::CutWrite::Rows& rows) {
    const std::uint64_t counted = write_table_rows(rows, rows_of_chunk(rows.spec));
    if (counted > 0) write_table_rows(rows, std::nullopt);
  }
  // Without a chunk: the counts of keys that have no rows yet, which are small, at once. Returns
  // how many keys have counts.
  std::uint64_t write_table_rows(const rpc::CutWrite::Rows& rows,
                                 std::optional<std::int64_t> chunk) {
    rpc::StateRange range{.variable = rows.stored, .is_of_counts = !chunk.has_value()};
    if (chunk) range.rows = *chunk;
    std::uint64_t counted = 0;
    std::int64_t end = 1;
    for (; range.first_row < end; range.first_row += chunk.value_or(end)) {
      rpc::StateOfRange state = export_range(range);
      end = std::max<std::int64_t>(1, static_cast<std::int64_t>(state.table->rows_end));
      counted = state.table->use.counted;
      write_record({.name = rows.name,
                    .spec = rows.spec,
                    .values = {{std::move(state.value), std::move(state.slots)}},
                    .keys = std::move(state.table->keys),
                    .is_of_counts = range.is_of_counts});
    }
    return counted;
  }

  ParameterStore& store_;
  const rpc::CutWrite request_;
  checkpoint::ShareWriter files_;  // used by the thread alone, as the next ones
  const std::map<std::string, at::Tensor> no_values_;
  checkpoint::SavedRecords records_;
  std::uint64_t chunks_ = 0;
  std::atomic<bool> is_cancelled_ = false;
  Mutex mutex_;
  rpc::CutWritten written_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses the others
};

CutWriter::CutWriter(ParameterStore& store, std::vector<std::string> folders, std::string self)
    : store_(store), folders_(std::move(folders)), self_(std::move(self)) {}

CutWriter::~CutWriter() = default;

rpc::CutWritten CutWriter::handle(rpc::CutWrite request) {
  if (request.is_end) return end(request.cut);
  if (request.folder.empty()) return tell(request.cut);
  check(request);
  end(std::nullopt);  // a save that has failed elsewhere
  request.folder = data::allowed_path(request.folder, {.data_dirs = folders_}, "checkpoint");
  const auto writing = std::make_shared<Writing>(store_, std::move(request), self_);
  const Lock lock(mutex_);
  writing_ = writing;
  return {};
}

rpc::CutWritten CutWriter::tell(std::uint64_t cut) {
  std::shared_ptr<Writing> writing;  // its thread ends without the lock
  const Lock lock(mutex_);
  COHORT_CHECK(writing_ != nullptr && writing_->cut() == cut, ErrorCode::not_found,
               "[server.write_cut] expected a checkpoint that ", self_,
               " writes, got a question about another one: its coordinator has begun another "
               "save, or this server was started again; save again");
  rpc::CutWritten told = writing_->tell();
  if (told.is_done) writing.swap(writing_);
  return told;
}

rpc::CutWritten CutWriter::end(std::optional<std::uint64_t> cut) {
  std::shared_ptr<Writing> writing;
  const Lock lock(mutex_);
  const bool is_this = writing_ != nullptr && (!cut || writing_->cut() == *cut);
  if (is_this) writing.swap(writing_);
  return {.is_done = true};
}

}  // namespace cohort::server
