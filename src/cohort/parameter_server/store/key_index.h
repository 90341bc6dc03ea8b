// SPDX-License-Identifier: Apache-2.0
// Finds the row of a key: a hash table with open addressing. Key, row and use are beside each
// other, so that a lookup costs one access to memory, and lookups of many keys wait for several at
// once.
//
// The table is divided into parts by the hash. Each part grows by itself, so that no single insert
// moves all entries, and old and new memory exist together for one part only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cohort::parameter_server {

// Thread-compatible.
class KeyIndex {
 public:
  struct Entry {
    std::int64_t key = 0;
    std::uint32_t row = kFree;
    std::uint32_t use = 0;  // what the table counts
    bool is_free() const { return row == kFree; }
  };
  static constexpr std::uint32_t kFree = 0xFFFFFFFF;

  // `num_parts`: a power of two.
  explicit KeyIndex(std::size_t num_parts);

  std::size_t size() const { return size_; }
  std::size_t num_parts() const { return parts_.size(); }
  std::size_t size_of(std::size_t part) const { return parts_[part].used; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t part_of(std::int64_t key) const { return part_of_hash(hash_of(key)); }

  // nullptr for a key that is not there. Entries stay where they are until the next insert() or
  // erase_if().
  Entry* find(std::int64_t key) { return find(key, hash_of(key)); }
  // Calls visit(i, find(keys[i])) for all keys, in their order.
  template <class Visit>
  void find_all(std::span<const std::int64_t> keys, const Visit& visit);
  // Adds a key that is not there. If there is no memory, throws and changes nothing.
  Entry& insert(std::int64_t key, std::uint32_t row, std::uint32_t use);
  // Visits the entries of a part, which may change but for their keys.
  template <class Visit>
  void for_each(std::size_t part, const Visit& visit);
  template <class Visit>
  void for_each(std::size_t part, const Visit& visit) const;
  // Removes the entries of a part for which `is_erased(entry)` is true. It is called once for each
  // entry. If there is no memory, throws before the first call.
  template <class IsErased>
  void erase_if(std::size_t part, const IsErased& is_erased);

 private:
  struct Part {
    std::unique_ptr<Entry[]> entries;
    std::size_t places = 0;
    std::size_t used = 0;
    Entry* end() const { return entries.get() + places; }
  };
  static constexpr std::size_t kPlacesMin = 8;

  static std::uint64_t hash_of(std::int64_t key) {
    std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15U;
    hash = (hash ^ (hash >> 32)) * 0xD6E8FEB86659FD93U;
    return hash ^ (hash >> 32);
  }
  std::size_t part_of_hash(std::uint64_t hash) const {
    return part_bits_ == 0 ? 0 : static_cast<std::size_t>(hash >> (64 - part_bits_));
  }
  // Where the search for a key begins. The number of places is any number, so that a part can grow
  // by less than its double.
  std::size_t home_of(std::uint64_t hash, std::size_t places) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((Wide{hash << part_bits_} * places) >> 64);
  }
  Entry* home_in(const Part& part, std::uint64_t hash) const {
    return part.entries.get() + home_of(hash, part.places);
  }
  // The entry of the key, or the free one where the search ends.
  static Entry* search(const Part& part, Entry* at, std::int64_t key) {
    while (!at->is_free() && at->key != key)
      if (++at == part.end()) at = part.entries.get();
    return at;
  }
  Entry* find(std::int64_t key, std::uint64_t hash) {
    const Part& part = parts_[part_of_hash(hash)];
    Entry* const at = search(part, home_in(part, hash), key);
    return at->is_free() ? nullptr : at;
  }
  std::unique_ptr<Entry[]> memory(std::size_t places) const;
  void move_to(Part& part, std::unique_ptr<Entry[]> entries, std::size_t places);

  int part_bits_;
  std::vector<Part> parts_;
  std::size_t size_ = 0;
  std::uint64_t bytes_ = 0;
};

template <class Visit>
void KeyIndex::find_all(std::span<const std::int64_t> keys, const Visit& visit) {
  // So many keys, that their accesses to memory overlap, and their hashes stay in registers or the
  // first cache.
  constexpr std::size_t kTogether = 32;
  std::array<std::uint64_t, kTogether> hashes;
  for (std::size_t first = 0; first < keys.size(); first += kTogether) {
    const std::size_t count = std::min(kTogether, keys.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(keys[first + i]);
      __builtin_prefetch(home_in(parts_[part_of_hash(hashes[i])], hashes[i]));
    }
    for (std::size_t i = 0; i < count; ++i) visit(first + i, find(keys[first + i], hashes[i]));
  }
}

template <class Visit>
void KeyIndex::for_each(std::size_t part, const Visit& visit) {
  for (Entry& entry : std::span(parts_[part].entries.get(), parts_[part].places))
    if (!entry.is_free()) visit(entry);
}

template <class Visit>
void KeyIndex::for_each(std::size_t part, const Visit& visit) const {
  for (const Entry& entry : std::span(parts_[part].entries.get(), parts_[part].places))
    if (!entry.is_free()) visit(entry);
}

template <class IsErased>
void KeyIndex::erase_if(std::size_t part, const IsErased& is_erased) {
  Part& from = parts_[part];
  std::unique_ptr<Entry[]> entries = memory(from.places);
  for_each(part, [&](Entry& entry) {
    if (!is_erased(std::as_const(entry))) return;
    entry.row = kFree;  // move_to() leaves it out
    --from.used;
    --size_;
  });
  move_to(from, std::move(entries), from.places);
}

}  // namespace cohort::parameter_server
