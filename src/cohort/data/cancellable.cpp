// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/ahead_reader.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/iterator.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

// Once stop was requested, next() fails even if no stage checks for cancellation.
class CancellableSource final : public ElementSource {
 public:
  CancellableSource(std::unique_ptr<ElementSource> source, std::stop_token stop)
      : source_(std::move(source)), stop_(std::move(stop)) {}

  const ElementSpec& spec() const override { return source_->spec(); }
  bool next(Fields& fields) override {
    COHORT_CHECK(!stop_.stop_requested(), ErrorCode::cancelled,
                 "[data.next] expected an iterator that runs, got one that was cancelled");
    return source_->next(fields);
  }
  Nest pack(const Fields& fields) const override { return source_->pack(fields); }
  void save(ByteWriter& writer) const override { source_->save(writer); }
  void restore(ByteReader& reader) override { source_->restore(reader); }
  std::string pipeline() const override { return source_->pipeline(); }
  std::vector<StageStats> stats() const override { return source_->stats(); }

 private:
  std::unique_ptr<ElementSource> source_;
  std::stop_token stop_;
};

std::unique_ptr<ElementSource> started(const Dataset& dataset, const StageContext& context,
                                       std::stop_token stop) {
  return std::make_unique<CancellableSource>(dataset.node()->start(context), std::move(stop));
}

}  // namespace

std::unique_ptr<ElementSource> cancellable_source(const Dataset& dataset,
                                                  const IterationOptions& options,
                                                  std::stop_token stop,
                                                  std::shared_ptr<OpenedFiles> files) {
  const StageContext context(options, Purpose::run, dataset.options(), stop);
  return started(dataset, context.noting(std::move(files)), std::move(stop));
}

std::unique_ptr<ElementSource> source_ahead(const Dataset& dataset, const IterationOptions& options,
                                            std::stop_token stop) {
  const StageContext context(options, Purpose::run, dataset.options(), stop);
  return started(dataset, context.ahead(), std::move(stop));
}

}  // namespace cohort::data
