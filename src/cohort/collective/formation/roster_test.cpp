// SPDX-License-Identifier: Apache-2.0
// Who is in the next group, and when it begins.
#include "cohort/collective/formation/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace cohort::collective::formation {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = AbsentTask::Kind;
using Phase = Roster::Phase;

constexpr TimePoint kStart{};

Member member(int task, std::uint64_t incarnation = 1) { return {task, incarnation}; }

PastGroup past(std::uint64_t number, const std::vector<int>& tasks) {
  PastGroup group{.number = number};
  for (const int task : tasks) group.members.push_back(member(task));
  return group;
}

Join survivor_of(const PastGroup& group) { return {.last = group, .number_max = group.number}; }

std::vector<int> tasks_of(const Proposal& proposal) {
  std::vector<int> tasks;
  for (const ProposedMember& one : proposal.members) tasks.push_back(one.who.task);
  return tasks;
}

std::vector<bool> is_new(const Proposal& proposal) {
  std::vector<bool> all;
  for (const ProposedMember& one : proposal.members) all.push_back(one.is_new);
  return all;
}

TEST(Roster, WaitsForAllTheFirstTime) {
  Roster roster(3, member(0), {}, kStart);
  roster.join(member(2), {}, 1, kStart);
  roster.update({{1, {Kind::dead}}}, kStart + 1h);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  EXPECT_THAT(roster.lack(0).missing, ElementsAre(1, 2));  // 2 was silent for too long
  roster.join(member(1), {}, 2, kStart + 1h);
  roster.join(member(2), {}, 1, kStart + 1h);
  roster.update({}, kStart + 1h);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_EQ(roster.proposal().number, 1u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, true, true));
}

TEST(Roster, CommitsWhenAllHaveAccepted) {
  Roster roster(2, member(0), {}, kStart);
  roster.join(member(1), {}, 1, kStart);
  roster.update({}, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  roster.join(member(1), {.accepted = 1}, 1, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.phase(), Phase::committed);
  EXPECT_FALSE(roster.have_all_been_told());
  roster.note_told(member(1));
  EXPECT_TRUE(roster.have_all_been_told());
}

TEST(Roster, ProposesALargerNumberWithoutAMemberThatIsLost) {
  const Join join = survivor_of(past(4, {0, 1, 2}));
  Roster roster(3, member(0), join, kStart);
  roster.join(member(1), join, 1, kStart);
  roster.join(member(2), join, 2, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.proposal().number, 5u);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1, 2));
  roster.leave(2);
  roster.update({{2, {Kind::dead}}}, kStart);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_EQ(roster.proposal().number, 6u);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1));
}

TEST(Roster, WaitsForMembersThatNobodyMisses) {
  const Join join = survivor_of(past(4, {0, 1, 2}));
  Roster roster(3, member(0), join, kStart);
  roster.join(member(1), join, 1, kStart);
  roster.update({{2, {Kind::idle, 4}}}, kStart);
  EXPECT_THAT(roster.lack(0).missing, ElementsAre(2));
  Join missing = join;
  missing.missed = {member(2, 7)};  // another process of that task
  roster.join(member(1), missing, 1, kStart);
  roster.update({{2, {Kind::idle, 4}}}, kStart);
  EXPECT_THAT(roster.lack(0).missing, ElementsAre(2));
  missing.missed = {member(2)};
  roster.join(member(1), missing, 1, kStart);
  roster.update({{2, {Kind::idle, 4}}}, kStart);
  EXPECT_THAT(roster.lack(0).missing, IsEmpty());
  EXPECT_EQ(roster.phase(), Phase::gathering);  // it may be about to join
  roster.join(member(1), missing, 1, kStart + 1s);
  roster.update({{2, {Kind::idle, 4}}}, kStart + 1s);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1));
}

TEST(Roster, GoesOnShortlyBeforeTheDeadlineOfASurvivor) {
  Join join = survivor_of(past(4, {0, 1}));
  join.remaining_ms = 10'000;
  Roster roster(3, member(0), join, kStart);
  roster.join(member(2), {.remaining_ms = 1'000}, 1, kStart);  // new
  roster.update({}, kStart + 1s);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  roster.join(member(2), {.remaining_ms = 0}, 1, kStart + 9'400ms);
  roster.update({}, kStart + 9'400ms);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  roster.update({}, kStart + 9'500ms);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 2));
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, true));
}

TEST(Roster, IsLeftBehindByANewerGroup) {
  const Join join = survivor_of(past(4, {0, 1, 2}));
  Roster roster(3, member(0), join, kStart);
  const Absent others{{1, {Kind::idle, 5}}, {2, {Kind::idle, 5}}};
  roster.update(others, kStart + 1h);
  EXPECT_EQ(roster.lack(0).left_behind, 5u);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  roster.join(member(1), survivor_of(past(5, {1, 2})), 1, kStart + 1h);
  roster.join(member(2), survivor_of(past(5, {1, 2})), 2, kStart + 1h);
  roster.update({}, kStart + 1h);
  EXPECT_EQ(roster.proposal().number, 6u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false, false));
}

// Regression: a leader that the others had given up formed a group that had been proposed to them,
// and they formed another one with its number.
TEST(Roster, DoesNotUseANumberAgainThatWasProposed) {
  Join join = survivor_of(past(2, {1, 2}));
  join.proposed_max = 3;
  Roster roster(3, member(1), join, kStart);
  roster.join(member(2), survivor_of(past(2, {1, 2})), 1, kStart);
  roster.update({{0, {Kind::dead}}}, kStart);
  EXPECT_EQ(roster.lack(0).left_behind, 0u);  // no group 3 is known
  EXPECT_EQ(roster.proposal().number, 4u);
  EXPECT_EQ(roster.proposal().last, 2u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, false));
}

// It has entered group 3, which the others never heard of, and has not got their values there.
TEST(Roster, AMemberThatCouldNotConnectIsNewAgain) {
  Join behind = survivor_of(past(1, {0, 1, 2}));
  behind.number_max = 2;
  behind.proposed_max = 3;
  Roster roster(3, member(0), behind, kStart);
  roster.update({{1, {Kind::dead}}, {2, {Kind::dead}}}, kStart + 1h);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  EXPECT_EQ(roster.lack(0).left_behind, 2u);
  Join join = survivor_of(past(2, {1, 2}));
  join.proposed_max = 3;
  roster.join(member(1), join, 1, kStart + 1h);
  roster.join(member(2), join, 2, kStart + 1h);
  roster.update({}, kStart + 1h);
  EXPECT_EQ(roster.proposal().number, 4u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false, false));
}

// Two sides of a network that was divided have formed groups with the same number.
TEST(Roster, DoesNotMixTheValuesOfTwoGroupsWithOneNumber) {
  Roster roster(4, member(0), survivor_of(past(5, {0, 1})), kStart);
  roster.join(member(1), survivor_of(past(5, {0, 1})), 1, kStart);
  roster.join(member(2), survivor_of(past(5, {2, 3})), 2, kStart);
  roster.join(member(3), survivor_of(past(5, {2, 3})), 3, kStart);
  roster.update({}, kStart);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, false, true, true));
}

TEST(Roster, AProcessWithoutValuesIsNew) {
  Roster roster(2, member(1), survivor_of(past(5, {0, 1})), kStart);
  roster.join(member(0), {}, 1, kStart);
  roster.update({}, kStart);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false));
}

// All members but those in `here`, who have survived, do not answer.
Roster roster_of(const PastGroup& last, const std::vector<int>& here, RosterRules rules = {}) {
  Join join = survivor_of(last);
  for (const Member& one : last.members) join.missed.push_back(one);
  Roster roster(static_cast<int>(last.members.size()), member(here.front()), join, kStart,
                std::move(rules));
  for (std::size_t i = 1; i < here.size(); ++i) roster.join(member(here[i]), join, i, kStart);
  return roster;
}

TEST(Roster, FormsNoGroupThatMayBeTheSmallerSideOfADividedNetwork) {
  const auto can_go_on = [](const std::vector<int>& all, const std::vector<int>& here) {
    Roster roster = roster_of(past(3, all), here);
    roster.update({}, kStart);
    roster.update({}, kStart + 1s);
    EXPECT_EQ(roster.lack(here.front()).obstacle == Obstacle::none,
              roster.phase() != Phase::gathering);
    return roster.phase() != Phase::gathering;
  };
  EXPECT_TRUE(can_go_on({0, 1, 2}, {1, 2}));
  EXPECT_FALSE(can_go_on({0, 1, 2}, {0}));
  EXPECT_TRUE(can_go_on({0, 1}, {0}));
  EXPECT_FALSE(can_go_on({0, 1}, {1}));
  EXPECT_TRUE(can_go_on({0, 1, 2, 3}, {0, 2}));
  EXPECT_FALSE(can_go_on({0, 1, 2, 3}, {1, 3}));
}

// Every division of a group, also where each side knows only of some that have ended.
TEST(Roster, NeverTwoSidesOfADividedNetworkGoOn) {
  constexpr unsigned kAll = 1U << 4U;
  const std::vector<int> all{0, 1, 2, 3};
  PastGroup last = past(3, all);
  for (std::uint64_t i = 0; i < 4; ++i) last.places.push_back({1, 1, {100 + i}});
  const auto goes_on = [&](unsigned here, unsigned gone) {
    std::vector<int> tasks;
    Absent absent;
    for (const int task : all) {
      if ((here >> static_cast<unsigned>(task) & 1U) != 0) tasks.push_back(task);
      if ((gone >> static_cast<unsigned>(task) & 1U) != 0)
        absent[task] = {.kind = Kind::dead, .addresses = {100 + static_cast<std::uint64_t>(task)}};
    }
    if (tasks.empty()) return false;
    Roster roster = roster_of(last, tasks);
    roster.update(absent, kStart);
    roster.update(absent, kStart + 1s);
    return roster.phase() != Phase::gathering;
  };
  int num_that_go_on = 0;
  for (unsigned one = 1; one < kAll; ++one) {
    for (unsigned other = 1; other < kAll; ++other) {
      if ((one & other) != 0) continue;
      const unsigned ended = ~(one | other) & (kAll - 1);
      for (unsigned known = 0; known < kAll; ++known) {
        if ((known & ~ended) != 0) continue;
        for (unsigned known_there = 0; known_there < kAll; ++known_there) {
          if ((known_there & ~ended) != 0) continue;
          const bool first = goes_on(one, known), second = goes_on(other, known_there);
          EXPECT_FALSE(first && second) << one << " and " << other << " without " << ended;
          num_that_go_on += first ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_that_go_on, 0);
}

TEST(Roster, CountsNoMemberThatIsKnownToHaveEnded) {
  PastGroup last = past(3, {0, 1});
  last.places = {{7, 11, {100}}, {7, 12, {101}}};
  const auto goes_on = [&](const Absent& absent, bool has_ended = false) {
    Roster roster = roster_of(last, {1}, {.has_ended = [=](const Place& place) {
                                return has_ended && place.process == 11;
                              }});
    roster.update(absent, kStart);
    return roster.phase() == Phase::committed;
  };
  EXPECT_FALSE(goes_on({}));
  EXPECT_TRUE(goes_on({{0, {.kind = Kind::dead, .addresses = {100}}}}));
  // It listened somewhere else: a proxy, or another host that now has the name.
  EXPECT_FALSE(goes_on({{0, {.kind = Kind::dead, .addresses = {55}}}}));
  EXPECT_TRUE(goes_on({{0, {.kind = Kind::dead}}}, true));
  Roster roster = roster_of(last, {1});
  roster.join(member(0, 2), {.addresses = {100}}, 5, kStart);  // another process at its address
  roster.update({}, kStart);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1));
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false));
}

// A leader was lost after the last acceptance. It may have formed the group, and train in it.
TEST(Roster, CountsAGroupThatMayHaveBeenFormed) {
  const PastGroup last = past(3, {0, 1, 2});
  Roster roster = roster_of(last, {1});
  Join join = survivor_of(last);
  join.missed = {member(0)};
  join.pending = past(4, {0, 2});
  roster.join(member(2), join, 1, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.lack(1).obstacle, Obstacle::minority);
  EXPECT_THAT(roster.lack(0).missing, ElementsAre(0));
}

// It may have formed a newer group, trained on, and ended then.
TEST(Roster, AMemberThatEndedAfterItWasSilentCounts) {
  PastGroup last = past(3, {0, 1});
  last.places = {{7, 11, {100}}, {7, 12, {101}}};
  const auto obstacle = [&](RosterRules rules, bool was_silent, bool was_refused) {
    Roster roster = roster_of(last, {1}, std::move(rules));
    roster.update({{0,
                    {.kind = was_refused ? Kind::dead : Kind::unknown,
                     .was_silent = was_silent,
                     .addresses = {100}}}},
                  kStart);
    return roster.lack(1).obstacle;
  };
  const auto ended = [](const Place& place) { return place.process == 11; };
  EXPECT_EQ(obstacle({}, false, true), Obstacle::none);
  EXPECT_EQ(obstacle({}, true, true), Obstacle::minority);
  EXPECT_EQ(obstacle({.has_ended = ended}, false, false), Obstacle::none);
  EXPECT_EQ(obstacle({.has_ended = ended}, true, false), Obstacle::minority);
  EXPECT_EQ(obstacle({.share_memory = true, .has_ended = ended}, true, false), Obstacle::none)
      << "it would have been told there";
}

TEST(Roster, IsAllowedToGoOnWithFew) {
  Roster roster = roster_of(past(3, {0, 1, 2}), {2}, {.allow_minority = true});
  roster.update({}, kStart);
  roster.update({}, kStart + 1s);
  EXPECT_EQ(roster.phase(), Phase::committed);
}

TEST(Roster, AGivenUpProcessFormsNoGroupWithoutThoseWhoGaveItUp) {
  PastGroup last = past(3, {0, 1, 2});
  last.places = {{7, 11, {100}}, {7, 12, {101}}, {7, 13, {102}}};
  Join told = survivor_of(last);
  told.is_given_up = true;
  Roster roster(3, member(2), told, kStart);
  Absent absent{{0, {.kind = Kind::dead, .addresses = {100}}}};
  roster.update(absent, kStart + 1h);
  EXPECT_EQ(roster.lack(2).obstacle, Obstacle::given_up);
  EXPECT_FALSE(roster.lack(2).is_final);                            // worker 1 may come
  roster.join(member(1, 2), {.addresses = {101}}, 1, kStart + 1h);  // it has started again
  roster.update(absent, kStart + 1h);
  EXPECT_EQ(roster.lack(2).obstacle, Obstacle::given_up);
  EXPECT_TRUE(roster.lack(2).is_final);
  EXPECT_FALSE(roster.lack(1).is_final);
  EXPECT_EQ(roster.phase(), Phase::gathering);
}

TEST(Roster, AMemberLeftBehindEndsWhenNobodyHasTheNewerValues) {
  Join behind = survivor_of(past(1, {0, 1, 2}));
  behind.number_max = 2;
  Roster roster(3, member(0), behind, kStart);
  roster.update({{1, {Kind::idle, 2}}, {2, {Kind::dead}}}, kStart);
  EXPECT_FALSE(roster.lack(0).is_final);
  roster.join(member(1, 2), {}, 1, kStart);  // it has started again
  roster.update({{2, {Kind::dead}}}, kStart);
  EXPECT_EQ(roster.lack(0).obstacle, Obstacle::left_behind);
  EXPECT_TRUE(roster.lack(0).is_final);
  EXPECT_FALSE(roster.lack(1).is_final);
}

TEST(Roster, AGivenUpProcessJoinsWhoGaveItUp) {
  const PastGroup last = past(3, {0, 1});
  Join told = survivor_of(last);
  told.is_given_up = true;
  Roster roster(2, member(0), told, kStart);
  Join other = survivor_of(last);
  other.missed = {member(0)};
  roster.join(member(1), other, 1, kStart);
  roster.update({}, kStart);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1));
}

TEST(Roster, AProcessThatStartedAgainReplacesItsPredecessor) {
  const Join join = survivor_of(past(4, {0, 1}));
  Roster roster(2, member(0), join, kStart);
  roster.join(member(1), join, 1, kStart);
  roster.join(member(1, 2), {}, 2, kStart);
  roster.leave(1);  // the old connection breaks later
  roster.update({}, kStart);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, true));
}

}  // namespace
}  // namespace cohort::collective::formation
