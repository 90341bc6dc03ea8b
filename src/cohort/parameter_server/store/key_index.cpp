// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/key_index.h"

#include <bit>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::parameter_server {
namespace {

// At most five of six places are used, and a part grows by a fifth. So a key needs at most 23
// bytes, and a search for one that is there looks at three or four places, which mostly share a
// cache line.
bool is_full(std::size_t used, std::size_t places) { return used * 6 >= places * 5; }

}  // namespace

KeyIndex::KeyIndex(std::size_t num_parts)
    : part_bits_(std::countr_zero(num_parts)), parts_(num_parts) {
  COHORT_ASSERT(std::has_single_bit(num_parts));
  for (Part& part : parts_) {
    part.entries = memory(kPlacesMin);
    part.places = kPlacesMin;
  }
  bytes_ = num_parts * (sizeof(Part) + kPlacesMin * sizeof(Entry));
}

std::unique_ptr<KeyIndex::Entry[]> KeyIndex::memory(std::size_t places) const {
  return std::make_unique<Entry[]>(places);
}

void KeyIndex::move_to(Part& part, std::unique_ptr<Entry[]> entries, std::size_t places) {
  const std::span<const Entry> before(part.entries.get(), part.places);
  Part next{std::move(entries), places, part.used};
  for (const Entry& entry : before) {
    if (entry.is_free()) continue;
    *search(next, home_in(next, hash_of(entry.key)), entry.key) = entry;
  }
  bytes_ += (places - part.places) * sizeof(Entry);
  part = std::move(next);
}

KeyIndex::Entry& KeyIndex::insert(std::int64_t key, std::uint32_t row, std::uint32_t use) {
  const std::uint64_t hash = hash_of(key);
  Part& part = parts_[part_of_hash(hash)];
  if (is_full(part.used + 1, part.places)) {
    const std::size_t places = part.places + part.places / 5 + kPlacesMin;
    move_to(part, memory(places), places);
  }
  Entry* const at = search(part, home_in(part, hash), key);
  COHORT_ASSERT(at->is_free());
  *at = {key, row, use};
  ++part.used;
  ++size_;
  return *at;
}

}  // namespace cohort::parameter_server
