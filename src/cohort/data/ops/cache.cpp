// SPDX-License-Identifier: Apache-2.0
// cache: yields the elements of the first complete pass again in each later one.
#include <algorithm>
#include <tuple>
#include <utility>

#include "cohort/core/random.h"
#include "cohort/data/batching/batch_builder.h"
#include "cohort/data/cache/cache_file.h"
#include "cohort/data/files/file_access.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct CacheAttributes {
  static constexpr std::string_view kOp = kCacheName;
  std::string file = {};  // empty: in memory
  static void describe(auto& visit, auto& all) { visit("file", all.file); }
};

Fields copy_of(const Fields& element) {
  Fields copies;
  for (const at::Tensor& field : element) {
    copies.push_back(StringTensor::is(field) ? field : field.clone(at::MemoryFormat::Contiguous));
  }
  return copies;
}

// The items of the first complete pass, rows or elements. Immutable.
template <class T>
struct CachedPass {
  std::uint64_t id = 0;  // distinguishes passes of one cache
  std::vector<T> items;
};

// Null before the first complete pass. Shared by the iterators of a dataset.
template <class T>
using MemoryCache = SharedValue<std::shared_ptr<const CachedPass<T>>>;

class CacheNode final : public OpNode<CacheNode, CacheAttributes> {
 public:
  using OpNode::OpNode;

  template <class T>
  MemoryCache<T>& memory() const {
    return std::get<MemoryCache<T>>(memory_);
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override;

 private:
  mutable std::tuple<MemoryCache<Fields>, MemoryCache<std::int64_t>> memory_;
};

// The position of a pass over a cache in memory. The pass reads the items that an earlier one kept,
// or keeps its own. Used only from its stage.
template <class T>
class MemoryPass {
 public:
  explicit MemoryPass(const CacheNode& node) : node_(node), count_(node.input().cardinality()) {}

  // The kept items; nullptr if there are none yet and this pass has to make them.
  const std::vector<T>* kept() {
    if (!pass_ && !is_filling_) {
      pass_ = node_.memory<T>().get();
      is_filling_ = pass_ == nullptr;
    }
    return pass_ ? &pass_->items : nullptr;
  }

  std::size_t position() const { return position_; }
  std::size_t left() const { return pass_->items.size() - position_; }
  void advance(std::size_t count) { position_ += count; }

  void keep(T item) {
    if (!is_filling_) return;  // the input has more elements than its cardinality
    filled_.push_back(std::move(item));
    // A consumer that takes exactly so many elements may never reach the end.
    if (static_cast<std::int64_t>(filled_.size()) == count_) complete();
  }

  // Ends the pass and keeps its items for later ones.
  void complete() {
    position_ = filled_.size();
    install(draw_number(), std::move(filled_));
  }

  // Calls check(item) for each restored item before other iterators can see it.
  template <class Check>
  void describe_position(Position& at, Check check) {
    auto state = static_cast<std::uint8_t>((pass_ ? 1 : 0) + (is_filling_ ? 2 : 0));
    std::size_t position = position_;
    std::uint64_t id = pass_ ? pass_->id : 0;
    at(state);
    at.check(state <= 2, "a cache's state");
    at(position);
    if (state == 1) at(Fixed{id});
    if (!at.is_restored()) {
      // NOLINTNEXTLINE: saving changes no item
      return at.list(pass_ ? const_cast<std::vector<T>&>(pass_->items) : filled_);
    }
    std::vector<T> items;
    at.list(items, 1, [&](T& item) {
      at(item);
      check(item);
    });
    at.check(position <= (state == 1 ? items.size() : 0) && (state != 0 || items.empty()),
             "a position in the cache");
    position_ = position;
    pass_.reset();
    filled_.clear();
    is_filling_ = state == 2;
    if (state == 1) {
      install(id, std::move(items));
    } else {
      filled_ = std::move(items);
    }
  }

 private:
  // Uses the node's pass if it is the same one. Otherwise offers `items` to the node.
  void install(std::uint64_t id, std::vector<T> items) {
    is_filling_ = false;
    pass_ = node_.memory<T>().get();
    if (pass_ && pass_->id == id && position_ <= pass_->items.size()) return;
    pass_ = std::make_shared<const CachedPass<T>>(CachedPass<T>{id, std::move(items)});
    node_.memory<T>().offer(pass_);
  }

  const CacheNode& node_;
  std::int64_t count_;  // the input's cardinality, which takes a walk to find
  std::shared_ptr<const CachedPass<T>> pass_;
  std::vector<T> filled_;
  std::size_t position_ = 0;
  bool is_filling_ = false;
};

class MemoryCacheStage final : public InputStage<CacheAttributes> {
 public:
  MemoryCacheStage(const CacheNode& node, std::unique_ptr<Stage> input)
      : InputStage(node, node.given(), std::move(input)), pass_(node) {}

  bool next(Fields& fields) override {
    if (const std::vector<Fields>* kept = pass_.kept()) {
      if (pass_.left() == 0) return false;
      fields = copy_of((*kept)[pass_.position()]);
      pass_.advance(1);
      return true;
    }
    if (!input().next(fields)) {
      pass_.complete();
      return false;
    }
    pass_.keep(copy_of(fields));
    return true;
  }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    const std::vector<Fields>* kept = pass_.kept();
    if (kept == nullptr) return Stage::next_batch(count, batch);
    const std::size_t begin = pass_.position();
    const std::int64_t got = skip(count);
    if (got == 0) return 0;
    const auto built = [&] {
      BatchBuilder builder(got, node());
      for (std::size_t i = begin; i < pass_.position(); ++i) builder.add((*kept)[i]);
      return std::move(builder).take();
    };
    batch = even(built, got);
    return got;
  }

  std::int64_t skip(std::int64_t count) override {
    if (pass_.kept() == nullptr) return Stage::skip(count);
    const auto skipped = std::min(static_cast<std::size_t>(count), pass_.left());
    pass_.advance(skipped);
    return static_cast<std::int64_t>(skipped);
  }

  void describe_position(Position& at) override {
    pass_.describe_position(at, [](const Fields&) {});
    InputStage::describe_position(at);
  }

 private:
  MemoryPass<Fields> pass_;
};

// Caches row numbers instead of elements.
class RowCacheStage final : public RowInputStage<CacheAttributes> {
 public:
  RowCacheStage(const CacheNode& node, std::unique_ptr<Stage> input)
      : RowInputStage(node, node.given(), std::move(input)), pass_(node) {}

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    if (const std::vector<std::int64_t>* kept = pass_.kept()) {
      const std::size_t count = std::min(rows.size(), pass_.left());
      std::copy_n(kept->begin() + static_cast<std::ptrdiff_t>(pass_.position()), count,
                  rows.begin());
      pass_.advance(count);
      return count;
    }
    const std::size_t got = input_rows().next_rows(rows);
    for (std::size_t i = 0; i < got; ++i) pass_.keep(rows[i]);
    if (got < rows.size() && pass_.kept() == nullptr) pass_.complete();
    return got;
  }

  void describe_position(Position& at) override {
    const std::int64_t size = store().size();
    pass_.describe_position(
        at, [&](std::int64_t row) { at.check(row >= 0 && row < size, "a row of the source"); });
    RowInputStage::describe_position(at);
  }

 private:
  MemoryPass<std::int64_t> pass_;
};

std::unique_ptr<Stage> CacheNode::make_stage(const StageContext& context) const {
  // A preview must not fill the cache.
  if (context.purpose() != Purpose::run) return input().start(context.input(0));
  if (!given().file.empty()) {
    CachePaths paths{
        .whole = allowed_path(cache_path(given().file), context.options(), kCacheName),
        .partial = allowed_path(partial_cache_path(given().file), context.options(), kCacheName)};
    return start_file_cache(*this, context, std::move(paths));
  }
  std::unique_ptr<Stage> from = input().start(context.input(0));
  if (from->rows() != nullptr) return std::make_unique<RowCacheStage>(*this, std::move(from));
  return std::make_unique<MemoryCacheStage>(*this, std::move(from));
}

}  // namespace

NodePtr make_cache(SerializedOp op) { return CacheNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::cache(std::string file) const {
  return data::CacheNode::over(node_, {std::move(file)});
}

}  // namespace cohort
