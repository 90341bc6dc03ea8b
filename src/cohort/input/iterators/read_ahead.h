// SPDX-License-Identifier: Apache-2.0
// A pipeline whose next elements are made by a thread while the caller is busy.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "cohort/data/ahead_reader.h"

namespace cohort::input {

// The saved position does not depend on `elements_max`: elements made ahead are part of it. Used
// from one thread at a time.
class ReadAhead final : public data::ElementSource {
 public:
  // 0: no thread. Else `source` is a source_ahead() with the token of `source_stop`, so that the
  // destructor need not wait until the source has found its next element.
  ReadAhead(std::stop_source source_stop, std::unique_ptr<data::ElementSource> source,
            std::size_t elements_max)
      : source_stop_(std::move(source_stop)),
        source_(std::move(source)),
        ahead_("to read ahead", *source_, source_stop_.get_token(), {.elements = elements_max}) {}
  ~ReadAhead() override { source_stop_.request_stop(); }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  const ElementSpec& spec() const override { return source_->spec(); }
  std::string pipeline() const override { return source_->pipeline(); }
  bool next(Fields& fields) override {
    std::optional<data::Item> item = ahead_.take();
    if (item) fields = std::move(*item).take();
    return item.has_value();
  }
  void save(ByteWriter& writer) const override { ahead_.save(writer); }
  void restore(ByteReader& reader) override { ahead_.restore(reader, false); }

 private:
  std::stop_source source_stop_;
  std::unique_ptr<data::ElementSource> source_;
  data::AheadReader ahead_;
};

}  // namespace cohort::input
