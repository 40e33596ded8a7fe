"""What generated tools are about: the words of their names, parameters, requests, results and answers.

`bench/unseen_tools.py` has other tools, parameters and requests, with which the model is measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


def _lists(text: str) -> dict[str, tuple[str, ...]]:
    """Lists by name: a line for each, and further lines that are indented."""
    lines = re.sub(r"\n +", " ", text.strip()).split("\n")
    return {name: tuple(items.split(", ")) for name, items in (line.split(": ", 1) for line in lines)}


VALUES = _lists("""
place: Aarhus, Bergen, Cork, Dover, Exeter, Faro, Ghent, Hobart, Izmir, Jaipur, Kyoto, Leeds, Malmo, Nantes, Oulu, Porto, Quito,
    Riga, Split, Turin, Utrecht, Varna, Windhoek, Yerevan, Zadar, New Haven, Cape May, San Remo, Fort Worth, Port Louis, Salt Lake
    City, Baden-Baden, St. Gallen, Bath, Lima, Accra, Havana, Tunis, Cusco, Perth
person: Mara, Jonas, Aiko, Pedro, Lucy, Omar, Ines, Viktor, Zoe, Hanna, Ravi, Selma, Dr. Brook, Ms. Ferro, Mr. Tanaka, Ida Holm,
    Karl Weiss, Nia Abebe, Tomas Ruiz, Lena Fischer, Paul O'Neill, Mira Shah, Ben Carter, Ruth Levi, Yusuf Demir, Clara Dupont, Igor
    Petrov, Amy Wong
day: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, tomorrow, today, May 4, 12 June, 2 October, Nov 30
item: lamp, desk, kettle, red scarf, tent, garden hose, bike helmet, yoga mat, printer ink, wool socks, coffee beans, wooden chair,
    paint, batteries, rice cooker, oak shelf, blue vase, hiking boots, toaster, cable, soap, green tea, notebook, umbrella, guitar
    strings, pillow
topic: solar panels, bees, the Roman army, volcanoes, sourdough, jazz, black holes, tax rules, knitting, electric cars, sleep, coral
    reefs, chess, the moon, old maps, vitamin D, steam engines, Greek myths, wild mushrooms, migration of birds, penguins, robots,
    glaciers, poetry
phrase: dinner is at eight, bring the blue folder, the meeting moved, see you at the gate, water the plants, call the plumber, we
    are late, the door code changed, happy birthday, thanks for the cake, order more paper, pick up the kids, check the oven, lunch
    is ready, the train is full, pay the rent, renew the passport, I will be out, buy milk and eggs, feed the cat
file: notes, plan, invoice, photo, draft, list, summary, backup, poem, ledger, minutes, recipe, sketch, thesis, menu
ending: .txt, .pdf, .csv, .md, .png, .docx, _old.txt, _v2.csv, -final.pdf
folder: archive, work, holiday, taxes, music, projects, trash, family, shared, inbox
tongue: Danish, Polish, Greek, Korean, Turkish, Finnish, Swahili, Dutch, Hindi, Czech, Welsh, Basque, Thai, Latin
table: invoices, clients, parcels, staff, lessons, visits, machines, rentals, shifts, stores
column: price, age, weight, hours, size, score, year, stock
device: hall lamp, fan, radio, heater, porch light, oven, coffee machine, desk light, pump, sprinkler
food: lentils, apples, chicken, pasta, tofu, carrots, salmon, eggs, mushrooms, oats, pumpkin, beans
meter: km, miles, kg, pounds, litres, gallons, feet, metres, inches, grams, ounces, hours, seconds, cups
coin: kroner, pesos, rupees, francs, zloty, lira, rand, won
work: The Silent Sea, Northern Lights, Paper Moon, Little Fires, The Long Walk, Iron Garden, Blue Hour, Winter Tales, Glass Bridge,
    Old Friends
word: brisk, ledger, quaint, harbour, solemn, candle, rhythm, meadow, orbit, thistle, velvet, gravel
size: small, medium, large
degree: low, normal, high
hue: red, blue, green, white
seating: window, aisle, middle
speed: slow, fast
meal: breakfast, lunch, supper
""")
"""Values of each kind of parameter."""
PARAMETERS = _lists("""
place: town, area, place, spot, where, region_name
start: start, from_place, leaving_from, departure, begin_at
goal: goal, to_place, arriving_at, target_place, end_at
person: who, person, guest_name, client, member, contact
day: day, when, weekday, on_day, for_day
goal_day: until, last_day, leave_on
hour: hour, at_hour, clock, start_at
count: count, pieces, how_many, copies, units_wanted
people: guests, party, persons, seats
span: nights, days_long, weeks, length
number: value, figure, x, first
other: other, y, second, by
money: price, sum, fee, cost, paid
share: percent, share, rate
code: code, ref, key, tracking_code, booking_ref, card
item: item, article, thing, goods
topic: topic, keyword, about, search_for, subject_area
phrase: note, wording, memo, what_to_say, phrase
file: file, document, filename, source_file
folder: folder, directory, target_folder
tongue: tongue, into_language, lang
table: table, sheet, dataset
column: column, field, measure
statement: statement, command, select
formula: formula, term, sum_text, calculation
device: device, appliance, gadget
food: food, ingredient, dish
meter: from_measure, given_in, measured_in
meter2: to_measure, wanted_in, into
coin: coin, money_kind, given_money
coin2: wanted_money, target_money, into_money
work: book, work, film, album
word: word, entry, lemma
size: size, format_size, cup_size
degree: level, strength, urgency
hue: hue, colour, tint
seating: seat_kind, seat_type, seating
speed: speed, pace
meal: meal, meal_kind
on: on, active, enabled, power
flag: express, gift_wrap, round_trip
extra: with_details, verbose, full
top: top, at_most, maximum
""")
"""Names of each kind of parameter."""
ALSO = _lists("""
verb: check, fetch, tell, show, read, use, do, make, handle
finder: code_of_person, find_ref, ref_lookup, client_codes, ref_for
""")
"""What is put before the names of some tools, and names of tools that find the code for a person."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a tool does. Parameters with ``?`` are optional; a part of a request in brackets is there if its parameter is."""

    names: str
    about: str
    takes: str
    asks: tuple[str, ...]
    gives: str


def _actions(text: str) -> tuple[Action, ...]:
    """One action per block: names, what it is about, parameters, requests, results."""
    blocks = [[line.strip() for line in block.strip().splitlines()] for block in text.strip().split("\n\n")]
    return tuple(Action(b[0], b[1], b[2], tuple(b[3:-1]), b[-1]) for b in blocks)


ACTIONS = _actions("""
sky_outlook rain_report skyCheck outlook
How the sky will be over a place
place day?
Will it rain in {place}[ on {day}]?
How does the sky look over {place}[ on {day}]?
Do I need a coat in {place}[ on {day}]?
sky=dry|foggy|heavy rain|light snow|clear degrees=-5..33

tide_times next_tide tides
When the sea is high at a place
place day?
When is high tide in {place}[ on {day}]?
I want to surf near {place}[ on {day}], when is the tide high?
high_tide=hour

sunrise_at dawn_time sun_times
Time of sunrise
place
At what time does the sun come up in {place}?
Sunrise in {place}?
sunrise=hour

local_clock clock_in time_there
The time at a place
place
What is the time in {place}?
How late is it now in {place}?
time=hour

pollen_count air_check smog_report
How clean the air is
place
How is the air in {place} today?
Is the air in {place} safe for a run?
air=good|fair|poor index=10..180

work_out arithmetic do_sum solveTerm
Works out a term with numbers
formula
What is {formula}?
What does {formula} make?
Work out {formula} for me.
I need the result of {formula}.
result=number

add_up plus_numbers sum_two
Adds two numbers
number other
Add {number} and {other}.
What do {number} and {other} make together?
{number} plus {other}, please.
result=number

multiply_by times product_of
Multiplies two numbers
number other
Multiply {number} by {other}.
What do I get for {number} times {other}?
result=number

power_of raise_number exponent
Raises a number to a power
number other
Raise {number} to the power of {other}.
result=number

square_root root_of sqrtValue
The root of a number
number
Find the square root of {number}.
What number squared gives {number}?
root=decimal

tip_for tip_helper gratuity
The tip for a bill
money share
I paid {money} for supper, how much is a tip of {share} percent?
Work out {share}% tip on {money}.
tip=decimal

discounted_price sale_price rebate
A price after a discount
money share
A coat costs {money} and is {share}% off, what do I pay?
What is left of {money} after {share} percent off?
final_price=decimal

change_measure measure_switch swap_measures
Changes one measure into another
number meter meter2
How many {meter2} are {number} {meter}?
Turn {number} {meter} into {meter2}.
I have {number} {meter}; what is that in {meter2}?
result=decimal

exchange_money money_changer swap_money
Changes money of one country into that of another
money coin coin2
How many {coin2} do I get for {money} {coin}?
Exchange {money} {coin} for {coin2}.
gets=decimal

dice_roll roll_dice throwDice
Rolls dice
count
Roll {count} dice.
Throw {count} dice for me
rolled=2..40

train_finder find_trains rail_search
Trains between two places
start goal day?
I need a train from {start} to {goal}[ on {day}].
Which train goes from {start} to {goal}[ on {day}]?
How do I get from {start} to {goal} by rail[ on {day}]?
train=code leaves=hour

ferry_plan boat_ticket buy_passage
Books a boat
start goal people flag?
Book a boat from {start} to {goal} for {people} people[, both ways{flag}].
We are {people} and want to sail from {start} to {goal}[ and back{flag}].
booking=code price=decimal

road_distance how_far milesBetween
How far two places are apart
start goal
How far is it from {start} to {goal}?
What is the distance between {start} and {goal}?
distance_km=12..900

taxi_call ride_request hail_cab
Orders a taxi
start goal hour?
Get me a taxi from {start} to {goal}[ at {hour}].
I need a ride from {start} to {goal}[ at {hour}]
minutes_to_wait=2..25 driver=person

inn_search rooms_free stay_finder
Rooms to stay in
place span people?
I want to stay {span} nights in {place}[ with {people} people].
Are there rooms in {place} for {span} nights[, {people} of us]?
inn=The Anchor|Hill House|Old Mill|Park Lodge price=40..210

table_for dining_slot supper_table
Reserves a table
place people hour day?
Reserve a table in {place} for {people} at {hour}[ on {day}].
We are {people}: a table in {place} at {hour}[ on {day}], please.
reserved=code

seat_choice choose_seat pickSeat
Chooses a seat
code seating
I would like a {seating} seat for booking {code}.
Give me the {seating} seat on {code}
seat=12A|7C|31F|4D|22B

parcel_trace where_is_parcel trace_package
Where a parcel is
code
Where is my parcel {code}?
Has the package {code} arrived yet?
Trace {code} for me.
parcel=on the way|delivered|at the depot|in customs where=place

buy_item purchase basket_add addToBasket
Puts a thing into the basket
item count? flag?
Put a {item} into my basket[, {count} of them][, wrapped as a gift{flag}].
I want to buy a {item}[, {count} pieces][, as a present{flag}].
basket=ok|added|done

stock_left in_store shelf_count
How many of a thing there are
item
How many pieces of {item} are left?
Do you have a {item} in store?
left=0..90

price_tag item_price cost_of
What a thing costs
item size?
What does a {item} cost[ in {size}]?
How much do you want for the {item}[, size {size}]?
costs=decimal

send_back goods_return return_parcel
Takes a thing back
code phrase?
I want to return the order {code}[ because: {phrase}].
Send {code} back[, reason: {phrase}]
return_label=code

drop_booking cancel_stay call_off
Cancels a booking
code
Cancel my booking {code}.
I cannot come, call off {code}, please.
outcome=cancelled|refunded|cannot be cancelled

diary_entry plan_day put_in_diary
Writes a date into the diary
phrase day hour?
Write into my diary for {day}[ at {hour}]: {phrase}
Put {phrase} into the diary on {day}[ at {hour}].
entry=code

whats_on day_plan diary_of
What a day holds
day person?
What do I have to do on {day}[ with {person}]?
What is planned for {day}[ with {person}]?
plan=dentist|lunch with Omar|piano lesson|nothing|team talk

alarm_at wake_me alarm_clock
Sets an alarm
hour day?
Wake me at {hour}[ on {day}].
Alarm for {hour}[ on {day}], please
alarm=set|on

countdown egg_timer timerStart
Starts a timer
count phrase?
Start a timer of {count} minutes[ that says {phrase}].
Count down {count} minutes[, then say {phrase}].
timer=running|started

nudge_me memo_later remember_this
Reminds of something
phrase day?
Don't let me forget[ on {day}]: {phrase}
Please remind me[ on {day}]: {phrase}.
memo=code

text_person tell_someone short_message pass_on
Tells somebody something
person phrase
Say to {person}: {phrase}
Let {person} know: {phrase}.
Text {person} that {phrase}.
told=sent|delivered|queued

write_letter post_letter letter_to
Writes a letter
person topic phrase
Write a letter to {person} about {topic}: {phrase}
A letter to {person}, please. It is about {topic} and says {phrase}.
{person} should get a letter with the heading {topic} and the words {phrase}
letter=posted|on its way

pin_up board_notice notice_board
Puts a note on a board
folder phrase
Pin {phrase} to the {folder} board.
On the {folder} board, write: {phrase}
Put a note on {folder} that says {phrase}.
pinned=yes|done

library_card_of member_file
The file of a member
top
Who is member {top}?
Open the file of member number {top}.
Whose number is {top}?
member=person since=2001..2024

stay_plan keep_room room_for
Keeps a room at an inn
work day goal_day
Keep a room at {work} from {day} to {goal_day}.
I will stay at {work}, {day} until {goal_day}.
room=code

pick_between in_range choose_number
Picks a number between two others
number other
Pick a number between {number} and {other}.
Anything from {number} to {other}, you choose.
picked=number

size_up shape_index body_shape
Works out an index of two measures
number other
What is the index for {number} and {other}?
Index of {number} wide and {other} high, please
index=decimal

chore_add put_on_list list_chore
Puts something on the list of chores
phrase degree?
Put {phrase} on the list of chores[, {degree} urgency].
I still have to {phrase}, put that on my list[ as {degree}].
chore=1..90

ring_up phone_call dial
Calls somebody
person hour?
Call {person}[ at {hour}].
Ring up {person}[ at {hour}] please
line=busy|connected|no answer

phone_book contact_card number_of
Phone number of a person
person
What is the phone number of {person}?
How can I reach {person} by phone?
phone=555-0142|555-0177|020 1234|071 8890

birthday_of person_facts age_of
The birthday of a person
person
When was {person} born?
I forgot the birthday of {person}.
born=3 May 1980|19 July 1992|8 March 1975|30 April 2001

look_into encyclopedia facts_about
Facts about a topic
topic top?
Find something about {topic}[, at most {top} results].
I want to read about {topic}[, only {top} articles].
What is known about {topic}?
found=12 articles|an article by Ida Holm|3 books|nothing new

headline_feed press_search papers_say
Headlines about a topic
topic day?
What do the papers say about {topic}[ on {day}]?
Any headlines about {topic}[ from {day}]?
headline=New rules agreed|Record year|Experts disagree|Prices fall again

library_shelf find_book book_lookup
Looks for a book
work
Do you have the book {work}?
Is {work} on the shelf?
shelf=B12|C7|A3|lent out

film_times cinema_list showings
When a film is shown
work place? day?
When is {work} shown[ in {place}][ on {day}]?
I'd like to see {work}[ in {place}][ on {day}].
shown=hour hall=1..9

play_album start_music tune_in
Plays music
work degree?
Put {work} on[ with {degree} volume].
I want to hear {work}[, volume {degree}]
playing=started|queued

say_in to_language put_into
Says a phrase in another language
phrase tongue
How do I say {phrase} in {tongue}?
Put this into {tongue}: {phrase}
Say {phrase} in {tongue}
said=qeso miru|tavi lon deka|hal mirin|sotu vena|ek lomi dar

word_meaning gloss lexicon
What a word means
word
What does the word {word} mean?
Explain {word} to me.
meaning=a kind of plant|quick and lively|a safe place|a book of accounts

same_sense synonym_for other_words
Words with the same meaning
word top?
Give me another word for {word}[, {top} at most].
What can I say in place of {word}?
words=calm, quiet|field, lawn|fast, lively

count_letters letter_count textLength
Counts the letters of a text
phrase
How many letters has {phrase}?
Count the letters of: {phrase}
letters=5..40

upper_case shout capitals
Writes a text in capital letters
phrase
Write {phrase} in capital letters.
capitals=upper

row_count count_rows rows_in
Number of rows in a table
table
How many rows has the table {table}?
Count the entries of {table}.
rows=3..5000

run_select ask_table table_reader
Runs a statement on the tables
statement
Run {statement}
Execute this for me: {statement}
What does `{statement}` give?
rows=number

average_of mean_value column_mean
The mean of a column
table column
What is the average {column} in {table}?
Give me the mean of {column} over all {table}.
mean=decimal

show_file open_document cat_file
Shows what is in a file
file
What is in {file}?
Open {file} and tell me what it says.
Let me see {file}
holds=milk, bread, tea|Dear Ida, come soon|Draft 3|total 420

move_file shift_document relocate
Moves a file into a folder
file folder
Move {file} to {folder}.
{file} belongs into the folder {folder}.
moved=ok|moved

erase_file remove_document bin_it
Deletes a file
file
Delete {file}.
Throw {file} away, please.
erased=yes|deleted

folder_list what_is_in list_directory
The files of a folder
folder
Which files are in {folder}?
List what {folder} holds.
files=plan.txt, menu.pdf|poem.md|photo.png, list.csv|none

store_note jot_down keep_note
Keeps a note in a file
phrase file?
Note this[ in {file}]: {phrase}
Write down[ into {file}] {phrase}
kept=yes|saved

print_out make_copies copy_shop
Prints a file
file count?
Print {file}[ {count} times].
I need {file} on paper[, {count} copies].
job=code

switch_device power_switch toggle_appliance
Switches a device
device on
I want the {device} {on}.
Turn {on} the {device}, please.
Could the {device} be {on}?
now=ok|done

warm_up heat_set thermostat_to
Heats to some degrees
number place?
Heat to {number} degrees.
I want it {number} degrees warm in here.
heating=on|set

lamp_hue light_tint tint_lamp
The colour of a lamp
device hue
Make the {device} {hue}.
I want {hue} light from the {device}
lamp=ok|done

cook_with dish_idea what_to_cook
A dish with some food
food people? meal?
What can I cook with {food}[ for {people}]?
I have {food} at home, any idea[ for {meal}]?
dish=soup|a warm salad|a pie|curry minutes=10..80

food_energy calorie_info nutrition
The energy in food
food number
How many calories are in {number} grams of {food}?
I ate {number} g of {food}, how much energy is that?
kcal=20..900

coffee_order brew barista
Makes a coffee
size flag? degree?
Make me a {size} coffee[, quickly{flag}][, {degree} strength].
A {size} coffee[, {degree}] please
ready_in=2..9

gym_log log_run walk_log
Writes down a walk
number speed? day?
I walked {number} km[ on {day}].
Log a walk of {number} km[ on {day}][, {speed} pace].
total_km=10..400

balance_of account_state purse
The money on an account
code
How much money is on account {code}?
What is the balance of {code}?
balance=decimal

pay_to wire_money pay_person
Pays money to somebody
person money phrase?
Pay {money} to {person}[ with the note {phrase}].
I owe {person} {money}, please pay it[, note: {phrase}].
payment=code

loan_cost monthly_rate instalment
What a loan costs a month
money share span
I borrow {money} at {share} percent for {span} years, what do I pay a month?
monthly=decimal

share_price paper_value market_value
What a share costs
code day?
What is the share {code} worth[ on {day}]?
worth=decimal

meet_room hall_free hire_hall
Hires a hall
place day people?
Hire a hall in {place} on {day}[ for {people} people].
Is there a free hall in {place} on {day}[, {people} people]?
hall=Blue Hall|Room 4|Great Hall|none

ticket_new raise_case report_fault
Reports a fault
phrase degree?
Report a fault[ with {degree} urgency]: {phrase}
Something is wrong: {phrase}. Open a case[, urgency {degree}].
case=code

case_state ticket_info follow_up
How a case stands
code extra?
How does the case {code} stand[, in full{extra}]?
Any progress with {code}[? Tell me everything{extra}]
state=open|waiting|solved|closed

hire_car rent_car car_hire
Rents a car
place span size?
Rent a [{size} ]car in {place} for {span} days.
I need a [{size} ]car for {span} days in {place}.
car=code a_day=decimal

doctor_slot clinic_visit see_doctor
A visit at the doctor's
person day hour?
I want to see {person} on {day}[ at {hour}].
Get me a visit with {person} on {day}[, at {hour} if possible].
visit_at=hour

random_pick lucky_number draw_number
Draws a number
top
Draw a number up to {top}.
Pick any number, at most {top}
drawn=1..30

joke_about funny_line amuse
Tells a joke
topic?
Tell me a joke[ about {topic}].
Make me laugh[ with something on {topic}].
joke=Why did it stop? It was tired.|It went flat.|Two walked in, one ran out.
""")

OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "Hi! ",
    "Hello, ",
    "Please help: ",
    "Quick one: ",
    "One thing: ",
    "I have a question. ",
    "Hey. ",
)
CLOSERS = ("", "", "", "", "", "", " Thanks!", " Thank you.", " It is urgent.", " Be quick.")
SYSTEMS = (
    "", "", "", "You are a helpful assistant.", "You help people with their errands.", "Be brief.", "Use the tools where they help.",
    "You are an agent. Answer in one sentence.", "Assist the customer.", "You work for a small shop in Leeds.",
)  # fmt: skip
DESCRIPTIONS = _lists("""
place: Name of the place
day: Day of the week or a date
hour: Time of day, as 18:30
person: Full name
code: As on the receipt
count: A whole number
item: What to buy
phrase: The text
money: Without the currency
topic: A few words
start: Where it begins
goal: Where it ends
file: Name with ending
number: Any number
""")
"""What some parameters say of themselves."""
CHAINS = (
    ("parcel_trace", "parcel", "Where is the parcel of {person}?"),
    ("balance_of", "account", "How much money is on the account of {person}?"),
    ("case_state", "case", "How does the case of {person} stand?"),
    ("drop_booking", "booking", "{person} cannot come: cancel the booking."),
    ("send_back", "order", "{person} wants to return what we sent."),
)
"""Actions that need a code, what the code belongs to, and a request that names only a person."""
TALK = (
    ("Hello!", "Hello! What can I do for you?"),
    ("Good morning", "Good morning! How can I help?"),
    ("Thanks a lot!", "You're welcome!"),
    ("Thank you, that is all.", "You're welcome. Have a nice day!"),
    ("Who are you?", "I am SmolLM, an assistant. How can I help?"),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("Which colour do you get from blue and yellow?", "Blue and yellow make green."),
    ("Name a fruit.", "An apple."),
    ("Is the earth round?", "Yes, the earth is round."),
    ("What do bees make?", "Bees make honey."),
    ("How many days has a week?", "A week has seven days."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("Which animal barks?", "A dog barks."),
    ("Say something nice.", "I hope you have a wonderful day!"),
    ("How are you?", "I am fine, thank you. How can I help?"),
    ("What is ice?", "Ice is frozen water."),
    ("Where do fish live?", "Fish live in water."),
    ("Which season follows spring?", "Summer follows spring."),
    ("Goodbye!", "Goodbye!"),
)
"""Messages for which no tool is needed, with answers."""
