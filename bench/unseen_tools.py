"""Tools, requests and results that the recipe smollm2-tools has never seen, as agents in use have them; written by hand.

Names of tools and parameters, and the wording of requests, are others than in the recipe (`tests/plugins/local/test_smollm2_tools.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request, the arguments of the right call, what the tool returns, and what the final answer must repeat of it."""

    tool: str
    text: str
    arguments: Mapping[str, Any]
    result: str
    repeats: tuple[str, ...]


TOOLS: dict[str, dict[str, Any]] = {}
REQUESTS: list[Request] = []


def tool(name: str, description: str, parameters: Mapping[str, Any], *requests: tuple[Any, ...]) -> None:
    """A tool with ``parameters``: a type, a list of values, or an object schema; those that end with ``?`` are optional. Each
    request is its text, its arguments, its result (a text, or an object), and what of it the answer repeats."""
    properties = {}
    for key, kind in parameters.items():
        schema = {"type": "string", "enum": kind} if isinstance(kind, list) else kind
        properties[key.rstrip("?")] = {"type": schema} if isinstance(schema, str) else schema
    required = [key for key in parameters if not key.endswith("?")]
    schema = {"type": "object", "properties": properties, "required": required}
    TOOLS[name] = {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }
    for text, arguments, result, *repeats in requests:
        shown = result if isinstance(result, str) else json.dumps(result)
        REQUESTS.append(Request(name, text, arguments, shown, tuple(repeats)))


tool(
    "get_weather",
    "Get the current weather in a city.",
    {"city": "string", "unit?": ["celsius", "fahrenheit"]},
    (
        "What's the weather like in Lisbon right now?",
        {"city": "Lisbon"},
        {"temperature": 24, "condition": "sunny"},
        "24",
        "sunny",
    ),
    (
        "Tell me the current weather for Boston in fahrenheit.",
        {"city": "Boston", "unit": "fahrenheit"},
        {"temperature": 61, "condition": "cloudy"},
        "61",
        "cloudy",
    ),
    ("Weather in Nairobi?", {"city": "Nairobi"}, "27 degrees and windy", "27", "windy"),
)
tool(
    "search_flights",
    "Search for flights between two airports.",
    {"origin": "string", "destination": "string", "date": "string"},
    (
        "Find flights from Berlin to Madrid on 2025-03-14.",
        {"origin": "Berlin", "destination": "Madrid", "date": "2025-03-14"},
        {"flight": "IB3677", "price_eur": 129},
        "IB3677",
    ),
    (
        "I'm flying from Chicago to Denver on 2025-07-02. What flights are there?",
        {"origin": "Chicago", "destination": "Denver", "date": "2025-07-02"},
        {"flight": "UA512", "price_usd": 214},
        "UA512",
    ),
    (
        "Show me flights leaving Oslo for Paris on 2026-01-09",
        {"origin": "Oslo", "destination": "Paris", "date": "2026-01-09"},
        "AF1275 at 07:40",
        "AF1275",
    ),
)
tool(
    "send_email",
    "Send an email.",
    {"to": "string", "subject": "string", "body": "string"},
    (
        "Email anna@example.com with the subject 'Budget' and the text 'The numbers are attached.'",
        {"to": "anna@example.com", "subject": "Budget", "body": "The numbers are attached."},
        {"status": "sent", "id": "m-881"},
        "sent",
    ),
    (
        'Send an email to joe@acme.io, subject "Lunch", body "Are you free at noon?"',
        {"to": "joe@acme.io", "subject": "Lunch", "body": "Are you free at noon?"},
        "Email sent.",
        "sent",
    ),
    (
        "Write to support@shop.com. Subject: Refund. Body: Please refund my last order.",
        {"to": "support@shop.com", "subject": "Refund", "body": "Please refund my last order."},
        {"status": "queued"},
        "queued",
    ),
)
tool(
    "calculate",
    "Evaluate a mathematical expression.",
    {"expression": "string"},
    ("Calculate 45 * 12", {"expression": ("45 * 12", "45*12")}, "540", "540"),
    ("Can you compute 318 + 77?", {"expression": ("318 + 77", "318+77")}, "395", "395"),
    ("Evaluate (8 + 4) / 3 please.", {"expression": ("(8 + 4) / 3", "(8+4)/3")}, {"value": 4}, "4"),
)
tool(
    "query_database",
    "Run a SQL query against the company database.",
    {"sql": "string"},
    (
        "Execute the query SELECT name FROM users",
        {"sql": ("SELECT name FROM users", "SELECT name FROM users;")},
        [["Ann"], ["Bob"]],
        "Ann",
        "Bob",
    ),
    (
        "Query the database: SELECT COUNT(*) FROM orders WHERE status = 'open'",
        {"sql": "SELECT COUNT(*) FROM orders WHERE status = 'open'"},
        "17",
        "17",
    ),
    (
        "Use SQL to get all products: SELECT * FROM products",
        {"sql": ("SELECT * FROM products", "SELECT * FROM products;")},
        "3 products: pen, ruler, stapler",
        "pen",
    ),
)
tool(
    "convert_currency",
    "Convert an amount between currencies.",
    {"amount": "number", "from_currency": "string", "to_currency": "string"},
    (
        "Convert 250 USD to EUR.",
        {"amount": 250, "from_currency": "USD", "to_currency": "EUR"},
        {"converted": 231.4},
        "231.4",
    ),
    (
        "How much is 80 GBP in JPY?",
        {"amount": 80, "from_currency": "GBP", "to_currency": "JPY"},
        "15240",
        "15240",
    ),
    (
        "What would 19.5 CHF be in SEK?",
        {"amount": 19.5, "from_currency": "CHF", "to_currency": "SEK"},
        {"converted": 227.1},
        "227.1",
    ),
)
tool(
    "create_event",
    "Create a calendar event.",
    {"title": "string", "date": "string", "start_time?": "string", "duration_minutes?": "integer"},
    (
        "Create an event called Team sync on 2025-05-06 at 10:00.",
        {"title": "Team sync", "date": "2025-05-06", "start_time": "10:00"},
        {"event_id": "ev_204"},
        "ev_204",
    ),
    (
        "Schedule a 45 minute event titled Review on 2025-11-20.",
        {"title": "Review", "date": "2025-11-20", "duration_minutes": 45},
        "Event created: ev_977",
        "ev_977",
    ),
    (
        "Add an event 'Dentist' to my calendar for 2026-02-01.",
        {"title": "Dentist", "date": "2026-02-01"},
        {"event_id": "ev_11", "status": "confirmed"},
        "ev_11",
    ),
)
tool(
    "get_stock_price",
    "Latest price of a stock.",
    {"symbol": "string"},
    ("What's the stock price of AAPL?", {"symbol": "AAPL"}, {"price": 189.3, "currency": "USD"}, "189.3"),
    ("Get me the latest quote for TSLA.", {"symbol": "TSLA"}, "242.17", "242.17"),
    ("How is MSFT trading at the moment?", {"symbol": "MSFT"}, {"price": 415.0}, "415"),
)
tool(
    "read_file",
    "Read the contents of a file.",
    {"path": "string"},
    ("Read the file config/settings.yaml", {"path": "config/settings.yaml"}, "debug: true", "debug: true"),
    ("Please display the contents of /etc/hostname.", {"path": "/etc/hostname"}, "web-01", "web-01"),
    ("What does README.md contain?", {"path": "README.md"}, "# Weather app", "Weather app"),
)
tool(
    "write_file",
    "Write text to a file.",
    {"path": "string", "content": "string"},
    (
        "Write 'hello world' to out.txt.",
        {"path": "out.txt", "content": "hello world"},
        {"bytes_written": 11},
        "11",
    ),
    (
        "Save the text 'version 2' in data/version.txt",
        {"path": "data/version.txt", "content": "version 2"},
        "ok, 9 bytes written",
        "9",
    ),
    (
        "Create the file todo.md with the content 'fix login'.",
        {"path": "todo.md", "content": "fix login"},
        {"status": "success"},
        "success",
    ),
)
tool(
    "web_search",
    "Search the web.",
    {"query": "string", "num_results?": "integer"},
    (
        "Search the web for best hiking trails in Norway.",
        {"query": "best hiking trails in Norway"},
        "1. Besseggen Ridge 2. Trolltunga",
        "Besseggen",
    ),
    (
        "Google python asyncio tutorial for me.",
        {"query": "python asyncio tutorial"},
        [{"title": "Asyncio walkthrough", "url": "realpython.example"}],
        "Asyncio walkthrough",
    ),
    (
        "Do a web search for 'cheap laptops' and return 5 results.",
        {"query": "cheap laptops", "num_results": 5},
        "Acer Aspire 3, Lenovo IdeaPad 1",
        "Acer Aspire 3",
    ),
)
tool(
    "translate_text",
    "Translate text into a target language.",
    {"text": "string", "target_language": "string"},
    (
        "Translate 'Good night' into French.",
        {"text": "Good night", "target_language": "French"},
        "Bonne nuit",
        "Bonne nuit",
    ),
    (
        "Translate the sentence 'Where is the station?' to German.",
        {"text": "Where is the station?", "target_language": "German"},
        {"translation": "Wo ist der Bahnhof?"},
        "Wo ist der Bahnhof",
    ),
    (
        "I need 'thank you' in Japanese.",
        {"text": "thank you", "target_language": "Japanese"},
        "arigatou",
        "arigatou",
    ),
)
tool(
    "get_order_status",
    "Look up the status of a customer order.",
    {"order_id": "string"},
    (
        "What's the status of order 48213?",
        {"order_id": "48213"},
        {"status": "shipped", "eta": "2025-06-11"},
        "shipped",
    ),
    ("Could you look up order A-7719?", {"order_id": "A-7719"}, "processing", "processing"),
    (
        "Did order ORD-556 ship already?",
        {"order_id": "ORD-556"},
        {"status": "shipped", "carrier": "DHL"},
        "shipped",
    ),
)
tool(
    "search_products",
    "Search the product catalogue.",
    {"query": "string", "category?": "string", "max_price?": "number"},
    (
        "Look for running shoes under 100 dollars.",
        {"query": "running shoes", "max_price": 100},
        [{"name": "Swift 3", "price": 79}],
        "Swift 3",
    ),
    ("Search products for 'wireless mouse'.", {"query": "wireless mouse"}, "LogiTech M185, 14.99", "M185"),
    (
        "Find headphones in the category electronics.",
        {"query": "headphones", "category": "electronics"},
        {"name": "SoundMax", "price": 59.0},
        "SoundMax",
    ),
)
tool(
    "set_thermostat",
    "Set the temperature of a room in degrees Celsius.",
    {"room": "string", "temperature": "number"},
    (
        "Set the thermostat in the bedroom to 19 degrees.",
        {"room": "bedroom", "temperature": 19},
        {"status": "ok", "temperature": 19},
        "19",
    ),
    (
        "Make it 22.5 degrees in the living room.",
        {"room": "living room", "temperature": 22.5},
        "Thermostat updated.",
        "updated",
    ),
    (
        "The office should be at 20 degrees.",
        {"room": "office", "temperature": 20},
        {"result": "accepted"},
        "accepted",
    ),
)
tool(
    "control_light",
    "Turn a light on or off.",
    {"room": "string", "state": ["on", "off"], "brightness?": "integer"},
    ("Turn off the kitchen light.", {"room": "kitchen", "state": "off"}, {"status": "off"}, "off"),
    ("Switch the lights in the garage on.", {"room": "garage", "state": "on"}, "Light is on.", "on"),
    (
        "Lights on in the hallway with brightness 40, please.",
        {"room": "hallway", "state": "on", "brightness": 40},
        {"status": "on", "brightness": 40},
        "on",
    ),
)
tool(
    "play_song",
    "Play a song.",
    {"song": "string", "artist?": "string"},
    (
        "Play Bohemian Rhapsody by Queen.",
        {"song": "Bohemian Rhapsody", "artist": "Queen"},
        {"now_playing": "Bohemian Rhapsody"},
        "Bohemian Rhapsody",
    ),
    ("Put on the song Yesterday.", {"song": "Yesterday"}, "Playing Yesterday (2:05)", "Yesterday"),
    ("Can you play Hello by Adele?", {"song": "Hello", "artist": "Adele"}, {"status": "playing"}, "playing"),
)
tool(
    "create_issue",
    "Open an issue in a repository.",
    {"repo": "string", "title": "string", "labels?": {"type": "array", "items": {"type": "string"}}},
    (
        "Open an issue in acme/api with the title 'Login fails'.",
        {"repo": "acme/api", "title": "Login fails"},
        {"number": 318},
        "318",
    ),
    (
        "File an issue titled 'Typo in docs' on the repo acme/site.",
        {"repo": "acme/site", "title": "Typo in docs"},
        "Created issue #42",
        "42",
    ),
    (
        "New issue for core/engine: Memory leak",
        {"repo": "core/engine", "title": "Memory leak"},
        {"number": 7, "state": "open"},
        "7",
    ),
)
tool(
    "post_message",
    "Post a message to a chat channel.",
    {"channel": "string", "message": "string"},
    (
        "Post 'Deploy finished' to the channel ops.",
        {"channel": "ops", "message": "Deploy finished"},
        {"ok": True, "ts": "1718.22"},
        "1718.22",
    ),
    (
        "Tell the channel general: The office is closed on Friday",
        {"channel": "general", "message": "The office is closed on Friday"},
        "posted",
        "posted",
    ),
    (
        "Message #random saying 'pizza in the kitchen'.",
        {"channel": ("#random", "random"), "message": "pizza in the kitchen"},
        {"status": "posted"},
        "posted",
    ),
)
tool(
    "get_user",
    "Get a user record.",
    {"user_id": "integer"},
    ("Get the user with id 1042.", {"user_id": 1042}, {"name": "Grace Kim", "plan": "pro"}, "Grace Kim"),
    ("Who is user 77?", {"user_id": 77}, "Daniel Ortiz", "Daniel Ortiz"),
    (
        "Pull up the record for user 9001, please.",
        {"user_id": 9001},
        {"name": "Lin Chen", "plan": "free"},
        "Lin Chen",
    ),
)
tool(
    "calculate_bmi",
    "Body mass index from weight and height.",
    {"weight_kg": "number", "height_cm": "number"},
    (
        "What's my BMI if I weigh 70 kg and am 175 cm tall?",
        {"weight_kg": 70, "height_cm": 175},
        {"bmi": 22.9},
        "22.9",
    ),
    (
        "Compute the body mass index for 82.5 kg and 180 cm.",
        {"weight_kg": 82.5, "height_cm": 180},
        "25.5",
        "25.5",
    ),
    ("BMI for weight 60, height 165", {"weight_kg": 60, "height_cm": 165}, {"bmi": 22.0}, "22"),
)
tool(
    "convert_units",
    "Convert a quantity from one unit to another.",
    {"quantity": "number", "source_unit": "string", "target_unit": "string"},
    (
        "Convert 10 kilometers to miles.",
        {"quantity": 10, "source_unit": ("kilometers", "kilometer", "km"), "target_unit": ("miles", "mile")},
        {"answer": 6.21},
        "6.21",
    ),
    (
        "How many celsius is 98 fahrenheit?",
        {"quantity": 98, "source_unit": "fahrenheit", "target_unit": "celsius"},
        "36.7",
        "36.7",
    ),
    (
        "Change 3.5 liters to pints",
        {"quantity": 3.5, "source_unit": ("liters", "liter"), "target_unit": ("pints", "pint")},
        {"answer": 7.4},
        "7.4",
    ),
)
tool(
    "get_directions",
    "Directions from one location to another.",
    {"from_location": "string", "to_location": "string", "mode?": ["driving", "walking", "transit"]},
    (
        "Give me walking directions from the museum to Central Park.",
        {"from_location": ("the museum", "museum"), "to_location": "Central Park", "mode": "walking"},
        {"minutes": 18},
        "18",
    ),
    (
        "Driving directions from Dallas to Austin, please.",
        {"from_location": "Dallas", "to_location": "Austin", "mode": "driving"},
        "195 miles on I-35",
        "195",
    ),
    (
        "Directions from Times Square to JFK airport by transit",
        {"from_location": "Times Square", "to_location": "JFK airport", "mode": "transit"},
        {"minutes": 62},
        "62",
    ),
)
tool(
    "book_hotel",
    "Book a hotel room.",
    {"hotel": "string", "check_in": "string", "check_out": "string"},
    (
        "Book the Hilton from 2025-08-01 to 2025-08-04.",
        {"hotel": ("Hilton", "the Hilton"), "check_in": "2025-08-01", "check_out": "2025-08-04"},
        {"confirmation": "HX-2291"},
        "HX-2291",
    ),
    (
        "I want to book Hotel Astoria, check in 2025-12-23 and check out 2025-12-27.",
        {"hotel": "Hotel Astoria", "check_in": "2025-12-23", "check_out": "2025-12-27"},
        "Confirmed, number 55120",
        "55120",
    ),
    (
        "Make a hotel booking at Sea View, 2026-04-10 until 2026-04-12",
        {"hotel": "Sea View", "check_in": "2026-04-10", "check_out": "2026-04-12"},
        {"confirmation": "SV901"},
        "SV901",
    ),
)
tool(
    "get_time",
    "Current time in a timezone.",
    {"timezone": "string"},
    ("What time is it in the timezone Europe/Rome?", {"timezone": "Europe/Rome"}, "14:32", "14:32"),
    ("Current time for Asia/Tokyo?", {"timezone": "Asia/Tokyo"}, {"time": "21:05"}, "21:05"),
    ("Give me the time in America/New_York.", {"timezone": "America/New_York"}, {"time": "08:15"}, "08:15"),
)
tool(
    "lookup_recipe",
    "Find a recipe.",
    {"ingredients": "string", "max_minutes?": "integer"},
    (
        "Find a recipe with rice and beans.",
        {"ingredients": "rice and beans"},
        {"recipe": "Gallo pinto"},
        "Gallo pinto",
    ),
    (
        "Any recipe using potatoes that takes at most 30 minutes?",
        {"ingredients": "potatoes", "max_minutes": 30},
        "Rosti",
        "Rosti",
    ),
    (
        "Look up a recipe for zucchini",
        {"ingredients": "zucchini"},
        {"recipe": "Ratatouille", "minutes": 50},
        "Ratatouille",
    ),
)
tool(
    "add_task",
    "Add a task to the to-do list.",
    {"task": "string", "priority?": ["p1", "p2", "p3"]},
    ("Add 'clean the garage' to my to-do list.", {"task": "clean the garage"}, {"task_id": 31}, "31"),
    (
        "Put the task send the contract on my list with priority p1.",
        {"task": "send the contract", "priority": "p1"},
        "Task 58 added",
        "58",
    ),
    ("New task: book the flights", {"task": "book the flights"}, {"task_id": 64, "status": "added"}, "64"),
)
tool(
    "random_number",
    "Generate a random integer between two bounds.",
    {"min": "integer", "max": "integer"},
    ("Give me a random number between 1 and 100.", {"min": 1, "max": 100}, "37", "37"),
    ("Generate a random integer from 500 to 900.", {"min": 500, "max": 900}, {"number": 612}, "612"),
    ("Random number, min 10, max 20", {"min": 10, "max": 20}, {"number": 13}, "13"),
)

TRIED = len(REQUESTS)
"""The author of the recipe read the model's errors on the requests up to here again and again, and on those after it once."""

tool(
    "reset_password",
    "Reset the password of an account.",
    {"username": "string"},
    (
        "Reset the password for mkelly.",
        {"username": "mkelly"},
        {"status": "reset link sent"},
        "reset link sent",
    ),
    ("User j.doe forgot their password, please reset it.", {"username": "j.doe"}, "ok", "ok"),
)
tool(
    "get_exchange_history",
    "Historical exchange rate of a currency pair.",
    {"pair": "string", "month": "string"},
    (
        "Get the history of EURUSD for 2024-09.",
        {"pair": "EURUSD", "month": "2024-09"},
        {"average": 1.11},
        "1.11",
    ),
    ("What was GBPJPY like in 2023-01?", {"pair": "GBPJPY", "month": "2023-01"}, "average 159.3", "159.3"),
)
tool(
    "summarize_url",
    "Summarize a web page.",
    {"url": "string", "max_words?": "integer"},
    (
        "Summarize https://example.com/news",
        {"url": "https://example.com/news"},
        "A storm hits the coast.",
        "storm hits the coast",
    ),
    (
        "Give me a summary of https://blog.dev/post in 50 words.",
        {"url": "https://blog.dev/post", "max_words": 50},
        {"summary": "Rust is fast."},
        "Rust is fast",
    ),
)
tool(
    "list_pull_requests",
    "List the pull requests of a repository.",
    {"owner": "string", "repository": "string", "status?": ["open", "closed"]},
    (
        "List pull requests of the repository parser owned by acme.",
        {"owner": "acme", "repository": "parser"},
        "#12 Fix lexer, #15 Add tests",
        "#12",
        "#15",
    ),
    (
        "Which closed pull requests does tools by zed have?",
        {"owner": "zed", "repository": "tools", "status": "closed"},
        {"count": 2},
        "2",
    ),
)
tool(
    "track_calories",
    "Log a meal for the user.",
    {"meal_name": "string", "calories": "integer"},
    (
        "Log 450 calories for chicken salad.",
        {"meal_name": "chicken salad", "calories": 450},
        {"total_today": 1320},
        "1320",
    ),
    (
        "I had a bagel, that's 280 calories.",
        {"meal_name": ("bagel", "a bagel"), "calories": 280},
        "Logged, 980 so far today",
        "980",
    ),
)
tool(
    "find_restaurants",
    "Find restaurants near a location.",
    {"cuisine": "string", "location": "string"},
    (
        "Find Thai restaurants in Seattle.",
        {"cuisine": "Thai", "location": "Seattle"},
        [{"name": "Lemongrass House", "rating": 4.6}],
        "Lemongrass House",
    ),
    (
        "Where can I eat Mexican food in Denver?",
        {"cuisine": ("Mexican", "Mexican food"), "location": "Denver"},
        "Casa Bonita",
        "Casa Bonita",
    ),
)
tool(
    "get_air_quality",
    "Air quality index by zip code.",
    {"zip_code": "string"},
    (
        "What's the air quality for zip code 94110?",
        {"zip_code": "94110"},
        {"aqi": 57, "category": "moderate"},
        "57",
    ),
    ("Check the AQI of 10001, please.", {"zip_code": "10001"}, "42", "42"),
)
tool(
    "restart_server",
    "Restart a server.",
    {"hostname": "string", "force?": "boolean"},
    ("Restart web-03.", {"hostname": "web-03"}, {"state": "restarting"}, "restarting"),
    (
        "Please reboot the server db.internal",
        {"hostname": "db.internal"},
        "db.internal is back up",
        "back up",
    ),
)
tool(
    "solve_equation",
    "Solve an equation for a variable.",
    {"equation": "string", "variable": "string"},
    ("Solve 2*x + 3 = 11 for x.", {"equation": "2*x + 3 = 11", "variable": "x"}, {"solution": 4}, "4"),
    ("Solve y - 7 = 2 for y", {"equation": "y - 7 = 2", "variable": "y"}, "y = 9", "9"),
)
tool(
    "get_news",
    "Latest news articles.",
    {"category": "string", "country?": "string"},
    ("Get me the latest sports news.", {"category": "sports"}, "Rovers win the cup", "Rovers win the cup"),
    (
        "Technology news from Germany?",
        {"category": "technology", "country": "Germany"},
        [{"headline": "Chip plant opens"}],
        "Chip plant opens",
    ),
)

TALK = (
    "Hi there!", "Thanks, you were very helpful.", "How's it going?", "What is the capital of Italy?", "How many legs does a dog have?",
    "See you later", "What sound does a cat make?", "Good evening!", "Do fish swim?", "What color is the sky?",
)  # fmt: skip
"""Messages that need none of these tools."""
