// SPDX-License-Identifier: Apache-2.0
// Which keys of a table have rows: it gives rows to new keys, counts the updates of keys that have
// none yet, and takes rows away where the table is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/parameter_server/store/key_index.h"
#include "cohort/parameter_server/store/row_segments.h"
#include "cohort/rpc/control.h"

namespace cohort::parameter_server {

// No row has this key.
inline constexpr std::int64_t kNoKey = internal::kNoRow;

// Many methods because all that changes a key's row is here. Thread-compatible.
class RowDirectory {
 public:
  // `name`: of the table, for messages. 2^`shift` rows have one segment.
  RowDirectory(std::string name, const rpc::TableSpec& spec, int shift);

  std::size_t size() const { return num_rows_; }
  std::uint64_t capacity() const { return spec_.capacity; }
  // All rows have numbers below it.
  std::uint32_t rows_end() const { return next_row_; }
  // kNoKey for a number that no key has.
  std::int64_t key_of(std::uint32_t row) const;
  // Where this number's key is, next to those of the other numbers of its segment.
  const std::byte* key_bytes(std::uint32_t row) const { return keys_.row(row); }
  // Called before a key loses its row; must not throw. nullptr: nobody is.
  void set_before_free(std::function<void(std::uint32_t row)> call) {
    before_free_ = std::move(call);
  }
  std::uint64_t bytes() const;

  // Which of some keys have rows.
  struct Found {
    std::vector<std::uint32_t> rows;
    std::vector<std::uint32_t> places;  // of them among the keys
    std::vector<std::uint32_t> absent;  // the places of the others
  };
  // Counts as a use of the rows.
  Found find(std::span<const std::int64_t> keys);

  // Keys that get rows, and rows for them, whose content is still arbitrary.
  struct Admission {
    std::vector<std::int64_t> keys;
    std::vector<std::uint32_t> rows;
    std::vector<std::int64_t> counted;  // keys that get none yet
    std::uint32_t rows_end = 0;         // the number of rows for which there must be memory
  };
  // For an update of these keys, which are distinct; `at_once` gives rows to all, whatever
  // min_count is. If there are too few rows left, evicts others. Throws resource_exhausted, and
  // changes nothing, if the table has no eviction, or fewer rows than there are keys.
  Admission prepare(std::span<const std::int64_t> keys, bool at_once = false);
  // Makes it so. May come only directly after prepare(). If there is no memory, throws; then some
  // of the keys have rows.
  void publish(const Admission& admission);
  // Takes the rows of these keys away, and what is counted of them.
  void erase(std::span<const std::int64_t> keys);
  // Takes all rows away, and all counts.
  void clear();

  // Keys without rows, and how many updates each has had.
  struct Counts {
    std::vector<std::int64_t> keys;
    std::vector<std::int64_t> updates;
    std::size_t parts_end = 0;  // the number of parts of the index
  };
  static constexpr std::int64_t kUpdatesMax = (std::int64_t{1} << 31) - 1;
  std::size_t num_counted() const { return num_counted_; }
  // The counts in `parts` parts of the index, from part `first` on.
  Counts counts(std::int64_t first, std::int64_t parts) const;
  // Updates are 1 to kUpdatesMax. A key that has a row keeps it.
  void set_counts(std::span<const std::int64_t> keys, std::span<const std::int64_t> updates);

 private:
  struct Wanted {
    std::size_t known = 0;  // keys that have rows
    std::vector<std::int64_t> keys;
    std::vector<std::int64_t> counted;
  };
  Wanted wanted_of(std::span<const std::int64_t> keys, bool at_once);
  void touch(KeyIndex::Entry& entry) const;
  std::size_t room() const;
  void warn_when_almost_full(std::size_t rows);
  void make_room(std::size_t count, std::span<const std::int64_t> keys);
  std::size_t evict_from(std::size_t part);
  void free_row(std::uint32_t row);
  void count(std::span<const std::int64_t> keys);
  void forget_counts();
  void advance_clock();
  std::size_t counted_max() const;
  std::int64_t& key_at(std::uint32_t row) {
    return *reinterpret_cast<std::int64_t*>(keys_.row(row));
  }

  const std::string name_;
  const rpc::TableSpec spec_;
  KeyIndex index_;
  RowSegments keys_;  // by row
  std::vector<std::uint32_t> free_rows_;
  std::uint32_t next_row_ = 0;
  std::size_t num_rows_ = 0;
  std::size_t num_counted_ = 0;
  std::uint32_t clock_ = 1;      // the number of this update
  std::size_t next_part_ = 0;    // from which rows are evicted next
  std::size_t next_counts_ = 0;  // of which counts are forgotten next
  bool has_warned_ = false;
  std::function<void(std::uint32_t row)> before_free_;
};

}  // namespace cohort::parameter_server
