// SPDX-License-Identifier: Apache-2.0

#include <exception>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/cache/cache_file.h"
#include "cohort/data/files/file_access.h"

namespace cohort::data {
namespace {

class FileCacheStage final : public Stage {
 public:
  FileCacheStage(const Node& node, StageContext context, CachePaths paths)
      : Stage(node),
        cache_(node),
        context_(std::move(context)),
        paths_(std::move(paths)),
        dataset_{.fingerprint = node.input().fingerprint(),
                 .cardinality = node.input().cardinality()} {}

  bool next(Fields& fields) override {
    if (late_error_) std::rethrow_exception(std::exchange(late_error_, nullptr));
    if (mode_ == Mode::fresh && !begin()) return false;
    switch (mode_) {
      case Mode::reading:
        return read(fields);
      case Mode::writing:
        return write(fields);
      case Mode::passing:
        return input_->next(fields);
      default:
        return false;
    }
  }

  // A pass that writes is saved as one that only passes elements through. The next pass fills the
  // cache, or reports why it cannot.
  void describe_position(Position& at) override {
    const Mode saved = mode_ == Mode::writing ? Mode::passing : mode_;
    auto number = static_cast<std::uint8_t>(saved);
    at(number);
    const auto mode = static_cast<Mode>(number);
    at.check(mode <= Mode::ended && mode != Mode::writing, "a cache's state");
    if (at.is_restored()) start_in(mode);
    if (mode == Mode::reading) {
      std::uint64_t offset = reader_->offset();
      std::uint64_t position = reader_->position();
      at(Fixed{offset}, Fixed{position});
      if (at.is_restored()) reader_->seek(offset, position);
    }
    if (mode == Mode::passing) at(*input_);
  }

 private:
  // Part of a saved position: never renumber.
  enum class Mode : std::uint8_t { fresh = 0, reading = 1, writing = 2, passing = 3, ended = 4 };

  void start_in(Mode mode) {
    mode_ = mode;
    writer_.reset();
    late_error_ = nullptr;
    if (mode_ == Mode::passing) input_ = start_input();
    if (mode_ != Mode::reading) return;
    reader_ = CacheFileReader::open(paths_.whole, dataset_);
    COHORT_CHECK(reader_ != nullptr, ErrorCode::not_found,
                 "[data.cache] expected the cache that the position is in, got no file '",
                 paths_.whole, "'");
  }

  std::unique_ptr<Stage> start_input() const { return cache_.input().start(context_.input(0)); }

  // If another iterator is writing the cache, the first call throws that error, and a later call
  // ends this pass unless the other one has finished. Returns false if the pass has ended.
  bool begin() {
    try {
      open();
      return true;
    } catch (...) {
      if (!std::exchange(was_refused_, true)) throw;
    }
    mode_ = Mode::ended;
    return false;
  }

  void open() {
    const ElementSpec* spec = cache_.known_spec();
    if (spec != nullptr) dataset_.spec = spec->to_string();
    reader_ = open_whole();
    if (!reader_) {
      writer_ = std::make_unique<CacheFileWriter>(paths_, dataset_);
      // Another iterator may have completed it just before it released its lock.
      reader_ = open_whole();
    }
    if (reader_) {
      writer_.reset();
      mode_ = Mode::reading;
    } else {
      input_ = start_input();
      mode_ = Mode::writing;
    }
  }

  // Notes the cache, which is then read in place of the input. One that this run writes is not.
  std::unique_ptr<CacheFileReader> open_whole() const {
    std::unique_ptr<CacheFileReader> reader = CacheFileReader::open(paths_.whole, dataset_);
    if (reader) note_opened(context_, paths_.whole, paths_.whole, kCacheName);
    return reader;
  }

  bool read(Fields& fields) {
    try {
      if (reader_->next(fields)) return true;
    } catch (...) {
      end();  // the file is damaged: its rest is lost
      throw;
    }
    end();
    return false;
  }

  bool write(Fields& fields) {
    if (!input_->next(fields)) {
      finish();
      return false;
    }
    try {
      writer_->add(fields);
    } catch (...) {
      stop_writing();
      late_error_ = std::current_exception();  // thrown after the element, which is valid
      return true;
    }
    if (static_cast<std::int64_t>(writer_->count()) != dataset_.cardinality) return true;
    try {
      finish();
    } catch (...) {
      late_error_ = std::current_exception();  // thrown after the last element
    }
    return true;
  }

  void finish() {
    try {
      writer_->finish();
    } catch (...) {
      stop_writing();
      throw;
    }
    end();
  }

  // If writing fails (disk full), the pass continues without a cache.
  void stop_writing() {
    writer_.reset();
    mode_ = Mode::passing;
  }

  void end() {
    mode_ = Mode::ended;
    writer_.reset();
    reader_.reset();
    input_.reset();
  }

  const Node& cache_;  // kept by the stage
  StageContext context_;
  CachePaths paths_;
  CachedDataset dataset_;  // kept, since it takes a walk to find
  Mode mode_ = Mode::fresh;
  bool was_refused_ = false;
  std::unique_ptr<CacheFileReader> reader_;
  std::unique_ptr<CacheFileWriter> writer_;
  std::unique_ptr<Stage> input_;  // while it writes or passes
  std::exception_ptr late_error_;
};

}  // namespace

std::unique_ptr<Stage> start_file_cache(const Node& node, StageContext context, CachePaths paths) {
  return std::make_unique<FileCacheStage>(node, std::move(context), std::move(paths));
}

}  // namespace cohort::data
