// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/sharding/selection.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

// The position in a selection and in the input.
class Cursor {
 public:
  explicit Cursor(std::shared_ptr<const Selection> selection) : selection_(std::move(selection)) {}

  // Advances over the next consecutive items, at most `count_max`, after it called skip() with the
  // number of elements before them. Returns how many elements the caller must draw.
  template <class Skip>
  std::int64_t advance(std::int64_t count_max, Skip skip) {
    const Selection::Run run = selection_->run(index_);
    const std::int64_t count = std::min(run.length, count_max);
    if (count == 0) return 0;
    if (run.position > position_) skip(run.position - position_);
    position_ = run.position + count;
    index_ += count;
    return count;
  }

  void describe_position(Position& at) {
    at(index_, position_);
    at.check(index_ >= 0 && position_ >= 0, "a selection's position");
  }

 private:
  std::shared_ptr<const Selection> selection_;
  std::int64_t index_ = 0;
  std::int64_t position_ = 0;
};

// A stage of selected elements. `Base` is Stage or RowStage, as the stage that it selects from.
template <class Base>
class Selected : public Base {
 public:
  Selected(const Node& node, std::unique_ptr<Stage> all, std::shared_ptr<const Selection> selection)
      : Base(node), all_(std::move(all)), cursor_(std::move(selection)) {}

  void describe_position(Position& at) final { at(cursor_, *all_); }

 protected:
  const std::unique_ptr<Stage> all_;
  Cursor cursor_;
};

class SelectedRows final : public Selected<RowStage> {
 public:
  using Selected::Selected;

  const RowStore& store() const override { return all_->rows()->store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    RowStream& all = *all_->rows();
    std::size_t filled = 0;
    while (filled < rows.size()) {
      check_cancelled();
      const auto wanted = static_cast<std::int64_t>(rows.size() - filled);
      const auto count = static_cast<std::size_t>(cursor_.advance(
          wanted, [&](std::int64_t gap) { all.skip_rows(static_cast<std::size_t>(gap)); }));
      const std::size_t got = count == 0 ? 0 : all.next_rows(rows.subspan(filled, count));
      filled += got;
      if (got == 0 || got < count) break;
    }
    return filled;
  }
};

class SelectedElements final : public Selected<Stage> {
 public:
  using Selected::Selected;

  bool next(Fields& fields) override {
    return cursor_.advance(1, [this](std::int64_t gap) { all_->skip(gap); }) > 0 &&
           all_->next(fields);
  }
};

}  // namespace

bool is_element_wise(const Node& node) {
  static constexpr std::array<std::string_view, 7> kOps{
      "map", "map_field", "options", "prefetch", "typed_map", "with_spec", "zip"};
  return std::ranges::find(kOps, node.op()) != kOps.end();
}

bool is_seekable_reader(const Node& node) {
  return node.op() == "tf_record" || node.op() == "fixed_length_record";
}

std::unique_ptr<Stage> start_selected(const Node& node, std::unique_ptr<Stage> all,
                                      std::shared_ptr<const Selection> selection) {
  if (all->rows() != nullptr) {
    return std::make_unique<SelectedRows>(node, std::move(all), std::move(selection));
  }
  return std::make_unique<SelectedElements>(node, std::move(all), std::move(selection));
}

}  // namespace cohort::data
