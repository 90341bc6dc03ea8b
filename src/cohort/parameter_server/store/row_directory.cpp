// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/row_directory.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <bit>

#include "cohort/core/error.h"
#include "cohort/core/log.h"

namespace cohort::parameter_server {
namespace {

using Entry = KeyIndex::Entry;
using Eviction = rpc::TableSpec::Eviction;

// The row of an entry whose key has none: its updates are counted until it gets one.
constexpr std::uint32_t kCounted = KeyIndex::kFree - 1;
// More rows than this have no numbers.
constexpr std::size_t kRowsMax = kCounted;
// Marks entries that must not be evicted, in Entry::use.
constexpr std::uint32_t kInUse = std::uint32_t{1} << 31;
constexpr std::uint32_t kUseMax = kInUse - 1;
static_assert(kUseMax == RowDirectory::kUpdatesMax);
// An eviction takes this part of the rows that it looks at, so that it looks at few rows for each
// one that it takes.
constexpr std::size_t kEvictedPart = 8;

bool has_row(const Entry& entry) { return entry.row < kCounted; }
bool is_counted(const Entry& entry) { return entry.row == kCounted; }

// Chooses some of the entries that were used equally often. They are visited in the order of their
// hashes, and the choice is spread evenly over them: if always the first ones went, the others
// would fill their places in the index until searches are long, and would never be evicted.
struct EvenChoice {
  std::size_t chosen = 0;
  std::size_t all = 0;
  std::size_t visited = 0;
  bool next() {
    const std::size_t before = visited++ * chosen / all;
    return visited * chosen / all > before;
  }
};

// An eviction looks at one part. So it takes the rows that are least used in a part, and these are
// the least used of all where there is one part. A part of this size takes less than a millisecond.
std::size_t num_parts_for(std::uint64_t capacity) {
  constexpr std::uint64_t kRowsInPart = 32768, kPartsMax = 256;
  if (capacity == 0) return kPartsMax;
  return std::bit_ceil(std::clamp<std::uint64_t>(capacity / kRowsInPart, 1, kPartsMax));
}

}  // namespace

RowDirectory::RowDirectory(std::string name, const rpc::TableSpec& spec, int shift)
    : name_(std::move(name)),
      spec_(spec),
      index_(num_parts_for(spec.capacity)),
      keys_(at::full({1}, at::Scalar(kNoKey), at::kLong), shift) {}

std::int64_t RowDirectory::key_of(std::uint32_t row) const {
  return *reinterpret_cast<const std::int64_t*>(keys_.row(row));
}

std::uint64_t RowDirectory::bytes() const {
  return index_.bytes() + keys_.bytes() + free_rows_.capacity() * sizeof(std::uint32_t);
}

void RowDirectory::touch(Entry& entry) const {
  if (spec_.eviction == Eviction::least_recently_used) {
    entry.use = clock_;
  } else if (entry.use < kUseMax) {
    ++entry.use;
  }
}

RowDirectory::Found RowDirectory::find(std::span<const std::int64_t> keys) {
  Found found;
  found.rows.reserve(keys.size());
  found.places.reserve(keys.size());
  const bool touches = spec_.eviction != Eviction::none;
  index_.find_all(keys, [&](std::size_t i, Entry* entry) {
    if (entry == nullptr || !has_row(*entry)) {
      found.absent.push_back(static_cast<std::uint32_t>(i));
      return;
    }
    if (touches) touch(*entry);
    found.rows.push_back(entry->row);
    found.places.push_back(static_cast<std::uint32_t>(i));
  });
  return found;
}

RowDirectory::Wanted RowDirectory::wanted_of(std::span<const std::int64_t> keys, bool at_once) {
  Wanted wanted;
  index_.find_all(keys, [&](std::size_t i, const Entry* entry) {
    if (entry != nullptr && has_row(*entry)) {
      ++wanted.known;
      return;
    }
    const std::uint32_t updates = entry == nullptr ? 0 : entry->use;
    const bool is_admitted = at_once || updates + 1 >= spec_.min_count;
    (is_admitted ? wanted.keys : wanted.counted).push_back(keys[i]);
  });
  return wanted;
}

std::size_t RowDirectory::room() const {
  const std::size_t capacity = spec_.capacity == 0 ? kRowsMax : spec_.capacity;
  return std::min(capacity, kRowsMax) - num_rows_;
}

RowDirectory::Admission RowDirectory::prepare(std::span<const std::int64_t> keys, bool at_once) {
  advance_clock();
  Wanted wanted = wanted_of(keys, at_once);
  const std::size_t count = wanted.keys.size();
  if (count > room()) {
    const bool evicts = spec_.eviction != Eviction::none;
    COHORT_CHECK(evicts, ErrorCode::resource_exhausted, "[server.push] expected at most ",
                 num_rows_ + room(), " rows on this server in table '", name_, "', got ", num_rows_,
                 " and an update of ", count,
                 " new keys; give EmbeddingTableOptions a larger capacity or an eviction, or use "
                 "more parameter servers");
    COHORT_CHECK(wanted.known + count <= num_rows_ + room(), ErrorCode::resource_exhausted,
                 "[server.push] expected an update of at most ", num_rows_ + room(),
                 " keys, which is the capacity of table '", name_, "' on this server, got ",
                 wanted.known + count,
                 "; give EmbeddingTableOptions a larger capacity, or make smaller batches");
    make_room(count - room(), keys);
  }
  warn_when_almost_full(num_rows_ + count);
  Admission admission{std::move(wanted.keys), {}, std::move(wanted.counted), next_row_};
  admission.rows.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_used_again = i < free_rows_.size();
    admission.rows.push_back(is_used_again ? free_rows_[free_rows_.size() - 1 - i]
                                           : admission.rows_end++);
  }
  return admission;
}

void RowDirectory::warn_when_almost_full(std::size_t rows) {
  const bool is_almost_full = spec_.capacity != 0 && rows * 10 >= spec_.capacity * 9;
  if (spec_.eviction != Eviction::none || !is_almost_full || has_warned_) return;
  has_warned_ = true;
  log_warn("[server.push] table '", name_, "' has ", rows, " of at most ", spec_.capacity,
           " rows on this server, and no eviction: updates of new keys will be refused; give "
           "EmbeddingTableOptions a larger capacity or an eviction, or use more parameter servers");
}

void RowDirectory::publish(const Admission& admission) {
  keys_.grow_to(admission.rows_end);
  const std::uint32_t first_use =
      spec_.eviction == Eviction::least_recently_used ? clock_ : std::uint32_t{1};
  for (std::size_t i = 0; i < admission.keys.size(); ++i) {
    const std::int64_t key = admission.keys[i];
    const std::uint32_t row = admission.rows[i];
    if (Entry* const counted = index_.find(key)) {
      counted->row = row;
      counted->use = first_use;
      --num_counted_;
    } else {
      index_.insert(key, row, first_use);
    }
    if (row < next_row_) {
      free_rows_.pop_back();
    } else {
      next_row_ = row + 1;
    }
    key_at(row) = key;
    ++num_rows_;
  }
  count(admission.counted);
}

void RowDirectory::count(std::span<const std::int64_t> keys) {
  for (const std::int64_t key : keys) {
    if (Entry* const known = index_.find(key)) {
      ++known->use;
    } else {
      index_.insert(key, kCounted, 1);
      ++num_counted_;
    }
  }
  while (num_counted_ > counted_max()) forget_counts();
}

RowDirectory::Counts RowDirectory::counts(std::int64_t first, std::int64_t parts) const {
  Counts counts{.parts_end = index_.num_parts()};
  const auto begin = std::min(static_cast<std::size_t>(first), counts.parts_end);
  const auto end = begin + std::min(static_cast<std::size_t>(parts), counts.parts_end - begin);
  for (std::size_t part = begin; part < end; ++part) {
    index_.for_each(part, [&](const Entry& entry) {
      if (!is_counted(entry)) return;
      counts.keys.push_back(entry.key);
      counts.updates.push_back(entry.use);
    });
  }
  return counts;
}

void RowDirectory::set_counts(std::span<const std::int64_t> keys,
                              std::span<const std::int64_t> updates) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto count = static_cast<std::uint32_t>(updates[i]);
    if (Entry* const known = index_.find(keys[i])) {
      if (is_counted(*known)) known->use = count;
    } else {
      index_.insert(keys[i], kCounted, count);
      ++num_counted_;
    }
  }
  while (num_counted_ > counted_max()) forget_counts();
}

// The counts must not take more memory than the rows.
std::size_t RowDirectory::counted_max() const {
  constexpr std::size_t kAlways = 4096;
  return std::max<std::size_t>(kAlways, (spec_.capacity == 0 ? num_rows_ : spec_.capacity) / 2);
}

// Halves the counts of one part, and forgets those of 1.
void RowDirectory::forget_counts() {
  const std::size_t part = next_counts_++ % index_.num_parts();
  index_.for_each(part, [](Entry& entry) {
    if (is_counted(entry)) entry.use /= 2;
  });
  index_.erase_if(part, [&](const Entry& entry) {
    const bool is_forgotten = is_counted(entry) && entry.use == 0;
    if (is_forgotten) --num_counted_;
    return is_forgotten;
  });
}

// Evicts so many rows or more, but none of these keys.
void RowDirectory::make_room(std::size_t count, std::span<const std::int64_t> keys) {
  index_.find_all(keys, [](std::size_t, Entry* entry) {
    if (entry != nullptr && has_row(*entry)) entry->use |= kInUse;
  });
  const auto unmark = [&] {
    index_.find_all(keys, [](std::size_t, Entry* entry) {
      if (entry != nullptr) entry->use &= kUseMax;
    });
  };
  try {
    for (std::size_t evicted = 0; evicted < count;)
      evicted += evict_from(next_part_++ % index_.num_parts());
  } catch (...) {  // no memory
    unmark();
    throw;
  }
  unmark();
}

// Evicts the rows of one part that were used least. Frequencies of the others are halved, so that a
// key which was frequent long ago does not stay forever.
std::size_t RowDirectory::evict_from(std::size_t part) {
  std::vector<std::uint32_t> uses;
  uses.reserve(index_.size_of(part));
  const auto may_go = [](const Entry& entry) { return has_row(entry) && entry.use <= kUseMax; };
  index_.for_each(part, [&](const Entry& entry) {
    if (may_go(entry)) uses.push_back(entry.use);
  });
  if (uses.empty()) return 0;
  const std::size_t count = (uses.size() + kEvictedPart - 1) / kEvictedPart;
  const auto last = uses.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(uses.begin(), last, uses.end());
  const std::uint32_t threshold = *last;
  const auto less = static_cast<std::size_t>(
      std::count_if(uses.begin(), last, [&](auto use) { return use < threshold; }));
  EvenChoice choice{
      .chosen = count - less,
      .all = static_cast<std::size_t>(std::count(uses.begin(), uses.end(), threshold))};
  free_rows_.reserve(free_rows_.size() + count);
  index_.erase_if(part, [&](const Entry& entry) {
    if (!may_go(entry) || entry.use > threshold) return false;
    if (entry.use == threshold && !choice.next()) return false;
    free_row(entry.row);
    return true;
  });
  if (spec_.eviction == Eviction::least_frequently_used) {
    index_.for_each(part, [&](Entry& entry) {
      if (may_go(entry)) entry.use /= 2;
    });
  }
  return count;
}

// An erasure rebuilds a part, so each is visited once.
void RowDirectory::erase(std::span<const std::int64_t> keys) {
  std::vector<std::int64_t> known;
  std::vector<bool> has_some(index_.num_parts());
  index_.find_all(keys, [&](std::size_t i, const Entry* entry) {
    if (entry == nullptr) return;
    known.push_back(keys[i]);
    has_some[index_.part_of(keys[i])] = true;
  });
  std::sort(known.begin(), known.end());
  free_rows_.reserve(free_rows_.size() + known.size());
  for (std::size_t part = 0; part < has_some.size(); ++part) {
    if (!has_some[part]) continue;
    index_.erase_if(part, [&](const Entry& entry) {
      if (!std::binary_search(known.begin(), known.end(), entry.key)) return false;
      if (is_counted(entry)) {
        --num_counted_;
      } else {
        free_row(entry.row);
      }
      return true;
    });
  }
}

void RowDirectory::free_row(std::uint32_t row) {
  if (before_free_) before_free_(row);
  key_at(row) = kNoKey;
  free_rows_.push_back(row);
  --num_rows_;
}

// The number of an update has 31 bits, so all are halved when it is used up.
void RowDirectory::advance_clock() {
  if (++clock_ <= kUseMax) return;
  clock_ /= 2;
  if (spec_.eviction != Eviction::least_recently_used) return;
  for (std::size_t part = 0; part < index_.num_parts(); ++part) {
    index_.for_each(part, [](Entry& entry) {
      if (has_row(entry)) entry.use /= 2;
    });
  }
}

void RowDirectory::clear() {
  for (std::size_t part = 0; part < index_.num_parts(); ++part)
    index_.erase_if(part, [](const Entry&) { return true; });
  for (std::uint32_t row = 0; row < next_row_; ++row) key_at(row) = kNoKey;
  free_rows_.clear();
  next_row_ = 0;
  num_rows_ = num_counted_ = 0;
}

}  // namespace cohort::parameter_server
