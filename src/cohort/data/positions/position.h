// SPDX-License-Identifier: Apache-2.0
// Saves and restores positions. One function names the parts of a position, for both directions:
//
//   void describe_position(Position& at) override {
//     at(is_at_end_, next_);
//     at.check(next_ <= inputs_.size(), "the number of an input");
//     at(*input_);
//   }
//
// The type of a part says how it is written (docs/formats/pipeline.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/core/bytes.h"
#include "cohort/core/fields.h"
#include "cohort/core/mutex.h"
#include "cohort/data/element.h"
#include "cohort/data/parallel/item.h"

namespace cohort::data {

// Writes the parts, or sets them to what it reads. Used only within one save or restore.
class Position {
 public:
  explicit Position(ByteWriter& writer) : writer_(&writer) {}
  explicit Position(ByteReader& reader) : reader_(&reader) {}

  template <class... Parts>
  void operator()(Parts&&... parts) {
    (visit(parts), ...);
  }
  // How many items follow, each of at least `bytes_each` bytes.
  void count(std::size_t& items, std::size_t bytes_each = 1) {
    if (reader_ == nullptr) return writer_->varint(items);
    items = reader_->count(bytes_each);
  }
  // The number of the items, then what visit_item() names of each. Restoring replaces the items.
  template <class Items, class VisitItem>
  void list(Items& items, std::size_t bytes_each,
            VisitItem visit_item) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    std::size_t left = items.size();
    count(left, bytes_each);
    if (reader_ == nullptr) {
      for (auto& item : items) visit_item(item);
      return;
    }
    for (items.clear(); left > 0; --left) {
      typename Items::value_type item{};  // in no list, if reading throws
      visit_item(item);
      items.push_back(std::move(item));
    }
  }
  template <class Items>
  void list(Items& items) {
    list(items, 1, [this](auto& item) { visit(item); });
  }

  bool is_restored() const { return reader_ != nullptr; }
  // data_loss, naming what was expected, unless the parts that were restored are valid.
  void check(bool is_valid, std::string_view expected) const {
    if (is_restored() && !is_valid) reader_->fail(expected);
  }
  // For what has functions of its own. One of them is null.
  ByteWriter* writer() { return writer_; }
  ByteReader* reader() { return reader_; }

 private:
  void visit(bool& value) {
    if (reader_ == nullptr) return writer_->u8(value ? 1 : 0);
    value = reader_->u8() != 0;
  }
  void visit(std::uint8_t& value) {
    if (reader_ == nullptr) return writer_->u8(value);
    value = reader_->u8();
  }
  void visit(std::uint64_t& value) {
    if (reader_ == nullptr) return writer_->varint(value);
    value = reader_->varint();
  }
  void visit(std::int64_t& value) {
    if (reader_ == nullptr) return writer_->zigzag(value);
    value = reader_->zigzag();
  }
  void visit(Fixed number) {
    if (reader_ == nullptr) return writer_->u64(number.value);
    number.value = reader_->u64();
  }
  void visit(std::string& value) {
    if (reader_ == nullptr) return writer_->text(value);
    value = reader_->text();
  }
  void visit(Fields& fields) {
    if (reader_ == nullptr) return write_fields(*writer_, fields);
    fields = read_fields(*reader_);
  }
  void visit(Item& item) {
    if (reader_ == nullptr) return write_item(*writer_, item);
    item = read_item(*reader_);
  }
  // A stage, or another part that names its own parts.
  template <class Part>
  requires requires(Part& part, Position& at) { part.describe_position(at); }
  void visit(Part& part) { part.describe_position(*this); }

  ByteWriter* writer_ = nullptr;
  ByteReader* reader_ = nullptr;
};

}  // namespace cohort::data
