// SPDX-License-Identifier: Apache-2.0
// A pipeline whose next elements are made by a thread while the caller is busy.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <stop_token>
#include <thread>

#include "cohort/core/mutex.h"
#include "cohort/data/iterator.h"

namespace cohort::input {

// The saved position does not depend on `elements_max`: elements made ahead are part of it. Owns
// its thread, which alone uses the source while it runs. Used from one thread at a time.
class ReadAhead final : public data::ElementSource {
 public:
  // 0: no thread. Else `source` is a source_ahead() with the token of `source_stop`, so that the
  // destructor need not wait until the source has found its next element.
  ReadAhead(std::stop_source source_stop, std::unique_ptr<data::ElementSource> source,
            std::size_t elements_max);
  ~ReadAhead() override {
    source_stop_.request_stop();
    stop();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  const ElementSpec& spec() const override { return source_->spec(); }
  std::string pipeline() const override { return source_->pipeline(); }
  bool next(Fields& fields) override;
  // Stops the thread; the next next() starts it again.
  void save(ByteWriter& writer) const override;
  void restore(ByteReader& reader) override;

 private:
  // An element, or the error in its place.
  struct Item {
    Fields fields = {};
    std::exception_ptr error = nullptr;
  };

  void start();
  void stop() const;
  void produce();
  bool wait_for_room();

  std::stop_source source_stop_;
  std::unique_ptr<data::ElementSource> source_;
  std::size_t elements_max_;
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::deque<Item> ready_ COHORT_GUARDED_BY(mutex_);
  bool is_at_end_ COHORT_GUARDED_BY(mutex_) = false;
  mutable bool must_stop_ COHORT_GUARDED_BY(mutex_) = false;
  mutable std::thread thread_;
};

}  // namespace cohort::input
